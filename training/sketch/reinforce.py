"""Step 3, reinforcement: J = E[(1 − γ) · R(r|x) − γ · KL(π_RL ‖ π)]; PICE's section on fine-tuning.

On-policy, with several sketches of each question, which are each other's baseline (leave-one-out). TRL's trainers would
not serve better: they know neither rewards of single lines nor the whole divergence at a token, and with a model of 5 M
parameters most of a step would be their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tandem.training.sketch.descent import Descent
from tandem.training.sketch.imitate import draw_items
from tandem.training.sketch.low_rank import merged
from tandem.training.sketch.preferences import sample
from tandem.training.sketch.reward import RewardModel, Rows, rows

QUESTIONS, TOGETHER = 8, 8
"""Questions of a step, and sketches of each."""


def advantages(worth: Tensor, batch: Rows, together: int) -> Tensor:
    """Return the advantage of each token's line over the question's other sketches: [rows, length].

    worth: of each line, where it ends; together: sketches of each question, which are neighbouring rows. Each line
    answers for itself: what later lines make of it is neglected.
    """
    lines = int(batch.line.max()) + 1
    by_line = torch.zeros(len(worth), lines).scatter_add(1, batch.line, worth)
    there = torch.zeros(len(worth), lines).scatter_add(1, batch.line, batch.ends.float())
    grouped, present = (x.view(-1, together, lines) for x in (by_line, there))
    others = present.sum(1, keepdim=True) - present
    baseline = (grouped.sum(1, keepdim=True) - grouped) / others.clamp(min=1)
    by_line = torch.where(others > 0, grouped - baseline, 0.0).view(len(worth), lines)
    return by_line.gather(1, batch.line) * batch.written


def objective(
    policy: LlamaForCausalLM, reference: LlamaForCausalLM, batch: Rows, advantage: Tensor, gamma: float
) -> Tensor:
    """Return the loss, whose gradient is −∇J; a mean over sketches. The KL is exact at every token."""
    log_policy = _log_probabilities(policy, batch)
    with torch.no_grad():
        log_reference = _log_probabilities(reference, batch)
    marks = batch.written[:, 1:]
    chosen = log_policy.gather(1, batch.ids[:, 1:][marks][:, None])[:, 0]
    reward = (advantage[:, 1:][marks] * chosen).sum() / len(batch.ids)
    kl = (log_policy.exp() * (log_policy - log_reference)).sum() / len(batch.ids)
    return gamma * kl - (1 - gamma) * reward


def _log_probabilities(model: LlamaForCausalLM, batch: Rows) -> Tensor:
    """Return log-probabilities of the whole vocabulary in place of each written token: [written, vocabulary]."""
    hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    return model.lm_head(hidden[:, :-1][batch.written[:, 1:]]).float().log_softmax(-1)


def reinforce(
    policy: LlamaForCausalLM,
    reference: LlamaForCausalLM,
    reward: RewardModel,
    gamma: float,
    descent: Descent,
    tokenizer: PreTrainedTokenizerFast,
    rng: Random,
) -> Iterator[float]:
    """Ascend J on questions as the family was trained on; yield the mean reward of a sketch after each step."""
    for _ in range(descent.steps):
        questions = [item.question for item in draw_items(QUESTIONS, rng) for _ in range(TOGETHER)]
        sketches = sample(merged(policy), tokenizer, questions, rng.randrange(2**31))
        batch = rows(tokenizer, questions, sketches)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                worth = reward(batch)
            loss = objective(policy, reference, batch, advantages(worth, batch, TOGETHER), gamma)
        descent.step(loss)
        yield float(worth.sum(1).mean())
