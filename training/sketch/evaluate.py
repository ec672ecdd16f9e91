"""Cost and quality of a target's sketches, on phrasings that it was never trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
from rich.table import Table
from transformers import LlamaForCausalLM

from tandem.policies.sketch.rouge import rouge1
from tandem.training.family.encyclopedia.items import Item
from tandem.training.family.evaluate import ANSWER_TOKENS, FACT_TOKENS, SKETCH_TOKENS
from tandem.training.family.expand import expand
from tandem.training.family.generate import generate
from tandem.training.family.prompts import answer_prompt, parse_sketch, sketch_prompt
from tandem.training.family.scoring import check_facts, fact_accuracy
from tandem.training.sketch.score import Expander

SHORTER = 0.9
"""The bar: at most this share of the tokens, at no less ROUGE-1 and facts."""
RESAMPLES = 2000


@dataclass(frozen=True)
class Figures:
    """Figures of one target; tuples have an entry per question.

    tokens: of the sketches' lines and their separators.
    all_tokens: with the announced length and the end token: what the target generates.
    stated, asked: facts in the expansion, and facts asked for.
    rouge: ROUGE-1 of the expansion against the true answer.
    length_error: mean error of the announced length of the answer, as a share of the true length.
    answer_facts, single_facts: shares of facts stated if the target answers in full.
    """

    tokens: tuple[int, ...]
    all_tokens: tuple[int, ...]
    stated: tuple[int, ...]
    asked: tuple[int, ...]
    rouge: tuple[float, ...]
    length_error: float
    answer_facts: float
    single_facts: float

    def report(self) -> dict[str, float]:
        return {
            "tokens": round(mean(self.tokens), 2),
            "all_tokens": round(mean(self.all_tokens), 2),
            "facts": round(sum(self.stated) / sum(self.asked), 4),
            "rouge1": round(mean(self.rouge), 4),
            "length_error": round(self.length_error, 4),
            "answer_facts": round(self.answer_facts, 4),
            "single_facts": round(self.single_facts, 4),
        }


def measure(
    target: LlamaForCausalLM,
    expander: Expander,
    items: Sequence[Item],
    facts: Sequence[Item],
) -> Figures:
    """Measure with greedy decoding. items: questions with long answers; facts: questions for one fact."""
    tokenizer = expander.tokenizer

    def texts(prompts: Sequence[str], max_tokens: int) -> list[str]:
        written = generate(target, tokenizer, prompts, max_tokens)
        return [str(tokenizer.decode(ids)).strip() for ids in written]

    questions = [item.question for item in items]
    written = generate(target, tokenizer, list(map(sketch_prompt, questions)), SKETCH_TOKENS)
    sketches = [parse_sketch(str(tokenizer.decode(ids))) for ids in written]
    expansions = list(map(" ".join, expand(expander.write, questions, [s.lines for s in sketches])))
    lengths = [len(tokenizer.encode(f" {item.answer}", add_special_tokens=False)) for item in items]
    return Figures(
        tokens=tuple(expander.tokens(sketch.lines) for sketch in sketches),
        all_tokens=tuple(len(ids) + 1 for ids in written),
        stated=tuple(sum(check_facts(item, text)) for item, text in zip(items, expansions, strict=True)),
        asked=tuple(len(item.lines) for item in items),
        rouge=tuple(rouge1(text, item.answer) for item, text in zip(items, expansions, strict=True)),
        length_error=mean(
            abs((s.length or 0) - length) / length for s, length in zip(sketches, lengths, strict=True)
        ),
        answer_facts=fact_accuracy(items, texts(list(map(answer_prompt, questions)), ANSWER_TOKENS)),
        single_facts=fact_accuracy(
            facts, texts([answer_prompt(item.question) for item in facts], FACT_TOKENS)
        ),
    )


def compare(before: Figures, after: Figures) -> dict[str, Any]:
    """Return the figures of the bar: the share of tokens saved, the gains in facts and ROUGE-1, each with the 95 %
    interval from resampling questions, and whether all meet it."""
    chosen = np.random.default_rng(0).integers(len(before.tokens), size=(RESAMPLES, len(before.tokens)))
    whole = np.arange(len(before.tokens))[None]

    def changes(rows: np.ndarray) -> dict[str, np.ndarray]:
        def total(values: Sequence[float]) -> np.ndarray:
            return np.asarray(values, float)[rows].sum(1)

        return {
            "saved": 1 - total(after.tokens) / total(before.tokens),
            "facts": (total(after.stated) - total(before.stated)) / total(before.asked),
            "rouge1": (total(after.rouge) - total(before.rouge)) / rows.shape[1],
        }

    spread = changes(chosen)
    found: dict[str, Any] = {
        name: [round(float(x), 4) for x in (value[0], *np.quantile(spread[name], [0.025, 0.975]))]
        for name, value in changes(whole).items()
    }
    met = found["saved"][0] >= 1 - SHORTER and found["facts"][0] >= 0 and found["rouge1"][0] >= 0
    return found | {"bar_met": bool(met)}


def table(stages: dict[str, Figures]) -> Table:
    """The stages of the tuning, each in a row."""
    names = next(iter(stages.values())).report()
    shown = Table("", *names, title="Held-out questions; facts and ROUGE-1 of the expansion")
    for stage, figures in stages.items():
        shown.add_row(stage, *map(str, figures.report().values()))
    return shown
