"""PICE's fine-tuning from its first to its last step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import torch
from rich.progress import Progress
from transformers import LlamaForCausalLM

from tandem.training.adapter.texts import batches
from tandem.training.sketch import low_rank
from tandem.training.sketch.descent import Descent
from tandem.training.sketch.imitate import documents, draw_items, imitate
from tandem.training.sketch.preferences import draw_pairs
from tandem.training.sketch.reinforce import reinforce
from tandem.training.sketch.reward import RewardModel, accuracy, learn_reward
from tandem.training.sketch.score import Expander, Score
from tandem.training.sketch.shorten import shorten

TOKENS = 2048
"""Tokens of a batch to imitate."""
HELD = 10
"""One in this many pairs is kept to judge the reward model."""


@dataclass(frozen=True)
class Plan:
    """Plan of the tuning.

    rank: of the change of each matrix.
    shortened: sketches to imitate.
    words: that a note may lose there.
    imitate: steps.
    imitate_rate: highest learning rate.
    pairs: questions whose sketches are sampled twice.
    b1: weight of 1 / len(r) in the score.
    b2: weight of ROUGE-1 in the score.
    reward: steps.
    reward_rate: highest learning rate.
    reinforce: steps.
    reinforce_rate: highest learning rate.
    gamma: weight of the KL.
    seed: of texts, samples and weights.
    """

    rank: int = 8
    shortened: int = 1000
    words: int = 2
    imitate: int = 300
    imitate_rate: float = 3e-3
    pairs: int = 400
    b1: float = 1.5
    b2: float = 1.0
    reward: int = 60
    reward_rate: float = 3e-4
    reinforce: int = 25
    reinforce_rate: float = 1e-3
    gamma: float = 0.1
    seed: int = 1


def tune(
    target: LlamaForCausalLM,
    expander: Expander,
    plan: Plan,
    progress: Progress,
    supervised: Callable[[LlamaForCausalLM], object] = lambda model: None,
) -> dict[str, Any]:
    """Attach a low-rank change to the target and teach it; returns what a report says of it.

    supervised: hears what the first step has made of it.
    """

    def bar(what: str, steps: int) -> Callable[[float], object]:
        task = progress.add_task(what, total=steps, figure=math.nan)
        return lambda figure: progress.update(task, advance=1, figure=figure)

    began_s, tokenizer, rng = time.monotonic(), expander.tokenizer, Random(f"sketch {plan.seed}")
    torch.manual_seed(plan.seed)
    learnt = low_rank.attach(target, plan.rank)

    shortened = shorten(draw_items(plan.shortened, rng), expander, plan.words, rng)
    descent = Descent(learnt, plan.imitate_rate, plan.imitate)
    supply = batches(documents(tokenizer, shortened, rng), TOKENS, rng)
    imitate(target, descent, supply, bar("imitating, loss", plan.imitate))
    reference = low_rank.merged(target)
    supervised(reference)

    score = Score(plan.b1, plan.b2)
    pairs = draw_pairs(reference, expander, draw_items(plan.pairs, rng), score, plan.seed)
    held, taught = pairs[::HELD], [pair for i, pair in enumerate(pairs) if i % HELD]
    reward = RewardModel(deepcopy(reference))
    descent = Descent(reward.parameters(), plan.reward_rate, plan.reward)
    learn_reward(reward, descent, taught, tokenizer, rng, bar("rewarding, loss", plan.reward))

    descent = Descent(learnt, plan.reinforce_rate, plan.reinforce)
    hear = bar("reinforcing, reward", plan.reinforce)
    for mean in reinforce(target, reference, reward, plan.gamma, descent, tokenizer, rng):
        hear(mean)
    return asdict(plan) | {
        "parameters": sum(parameter.numel() for parameter in learnt),
        "scored_pairs": len(pairs),
        "reward_accuracy": round(accuracy(reward, held, tokenizer), 4),
        "seconds": round(time.monotonic() - began_s),
    }
