"""Preference pairs: two sampled sketches of a question, judged by what the expander makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tandem.training.family.encyclopedia.items import Item
from tandem.training.family.evaluate import SKETCH_TOKENS
from tandem.training.family.expand import expand
from tandem.training.family.generate import generate
from tandem.training.family.prompts import parse_sketch, sketch_prompt
from tandem.training.sketch.score import Expander, Score


@dataclass(frozen=True)
class Pair:
    """Token ids as sampled, without end; the score of the first is higher."""

    question: str
    better: list[int]
    worse: list[int]


def sample(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: Sequence[str], seed: int
) -> list[list[int]]:
    """One sketch of each question at temperature 1, token ids without end."""
    torch.manual_seed(seed)
    return generate(model, tokenizer, list(map(sketch_prompt, questions)), SKETCH_TOKENS, sample=True)


def draw_pairs(
    model: LlamaForCausalLM, expander: Expander, items: Sequence[Item], score: Score, seed: int
) -> list[Pair]:
    """One for each item, y being its answer; without those whose sketches score the same.

    Raises ValueError if all do.
    """
    tokenizer = expander.tokenizer
    twice = [item for item in items for _ in range(2)]
    questions = [item.question for item in twice]
    sketches = sample(model, tokenizer, questions, seed)
    lines = [parse_sketch(str(tokenizer.decode(ids))).lines for ids in sketches]
    expansions = map(" ".join, expand(expander.write, questions, lines))
    scores = [
        score.of(expander.tokens(sketch), text, item.answer)
        for sketch, text, item in zip(lines, expansions, twice, strict=True)
    ]
    pairs = []
    for i, item in enumerate(items):
        worse, better = sorted((2 * i, 2 * i + 1), key=scores.__getitem__)
        if scores[worse] < scores[better]:
            pairs.append(Pair(item.question, sketches[better], sketches[worse]))
    if not pairs:
        raise ValueError("all sketches of a question score the same: the model has nothing to choose from")
    return pairs
