"""Quality of answers that one model begins and another ends, by where they are cut: DiSCo's appendix D.

    tandem benchmark migration_quality [--questions 200] [--seed 11]

The embedded family on questions in phrasings that it was never trained on. The first endpoint gives part of at
most 256 tokens, then the second opens a session with them as its log, as a race's hand-over does; `other` has another
vocabulary and is driven through text. Quality is the share of facts that the answer states and ROUGE-1 against the
reference (the paper's judges are language models; here the facts are known). The paper's equation (7) says that
min(Q_A, Q_B) ≤ Q_M ≤ max(Q_A, Q_B). A cell is within these bounds unless it is beyond one significantly: the 95 %
interval of the paired difference, from resampling questions, excludes zero. Cuts at 0 and 256 are the endpoints alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tandem.benchmarks import report
from tandem.benchmarks.scores import Scores
from tandem.engine import family
from tandem.engine.base import Engine, Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.engine import load
from tandem.engine.translated.engine import Translated
from tandem.training.family.encyclopedia.items import LONG_KINDS, Item
from tandem.training.family.prompts import answer_prompt, heldout

MAX_TOKENS = 256
CUTS = (0, 4, 16, 64, 256)
PAIRS = (("small", "target"), ("target", "small"), ("other", "target"), ("target", "other"))
MODELS = sorted({name for pair in PAIRS for name in pair})
AT_ONCE = 64  # sessions
RESAMPLES = 2000
Answers = list[list[int]]


@dataclass(frozen=True, slots=True)
class Cell:
    """A metric of one pair and cut.

    value: over all questions.
    error: half of its 95 % interval.
    beyond: how far outside the endpoints' own values, 0 if it isn't.
    within: whether that is sampling error.
    """

    value: float
    error: float
    beyond: float
    within: bool

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} ±{100 * self.error:.1f}{'' if self.within else ' !'}"


async def answer(engine: Engine, prompts: Answers, logs: Answers) -> Answers:
    """The logs, and how the engine ends them (greedy)."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> list[int]:
        async with places:
            ids = list(logs[number])
            session = await engine.open(prompts[number], Sampling(max_tokens=MAX_TOKENS), ids)
            async for tokens in session.generate():
                ids += tokens.ids
            await session.cancel()
            return ids

    return await asyncio.gather(*map(one, range(len(prompts))))


async def answers(items: Sequence[Item]) -> dict[tuple[str, str, int], list[str]]:
    """The texts for each pair and cut."""
    tokenizers = {name: Tokenizer.load(family.path(name)) for name in MODELS}
    here = tokenizers["target"]
    config = EngineConfig(max_sessions=AT_ONCE)
    models = {name: load(family.path(name), config, device="cpu", threads=2) for name in MODELS}
    engines: dict[str, Engine] = {**models, "other": Translated(models["other"], here, tokenizers["other"])}
    prompts = [here.encode(answer_prompt(item.question)) for item in items]
    nothing: Answers = [[] for _ in items]
    alone = {
        name: await answer(engines[name], prompts, nothing)
        for name in report.progress(engines, "endpoints alone")
    }
    texts = {}
    for first, second in report.progress(PAIRS, "migrated answers"):
        for cut in CUTS:
            if cut in (0, MAX_TOKENS):
                whole = alone[first] if cut else alone[second]
            else:
                whole = await answer(engines[second], prompts, [ids[:cut] for ids in alone[first]])
            texts[first, second, cut] = [here.decode(ids) for ids in whole]
    for model in models.values():
        await model.close()
    return texts


def assess(pair: Sequence[Scores], chosen: np.ndarray) -> dict[str, list[Cell]]:
    """Return, by metric, the cells of a pair, in the order of CUTS. The row 0 of `chosen` holds each question once."""
    drawn = [scores.resampled(chosen) for scores in pair]
    cells: dict[str, list[Cell]] = {}
    for metric in drawn[0]:
        values = [d[metric] for d in drawn]
        least, most = np.minimum(values[0], values[-1]), np.maximum(values[0], values[-1])
        cells[metric] = []
        for value in values:
            outside = (least - value, value - most)
            low, high = np.quantile(value[1:], (0.025, 0.975))
            cells[metric].append(
                Cell(
                    value=float(value[0]),
                    error=float(high - low) / 2,
                    beyond=max(0.0, *(float(o[0]) for o in outside)),
                    within=all(np.quantile(o[1:], 0.025) <= 0.0 for o in outside),
                )
            )
    return cells


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("migration_quality", __doc__)
    parser.add_argument(
        "--questions", type=int, default=200, help="drawn; repeated ones count once (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=11, help="of questions and resampling (%(default)s)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(2)
    began = time.monotonic()
    items = list(
        {item.question: item for item in heldout(options.questions, LONG_KINDS, options.seed)}.values()
    )
    scores = {key: Scores.of(items, texts) for key, texts in asyncio.run(answers(items)).items()}
    rng = np.random.default_rng(options.seed)
    chosen = np.vstack([np.arange(len(items)), rng.integers(0, len(items), (RESAMPLES, len(items)))])
    cells = {
        (first, second, metric): row
        for first, second in PAIRS
        for metric, row in assess([scores[first, second, cut] for cut in CUTS], chosen).items()
    }
    report.table(
        f"quality by the first endpoint's tokens of {MAX_TOKENS}; {len(items)} questions, %, with 95 % intervals;"
        " !: outside the endpoints' own",
        ["first → second", "metric", *map(str, CUTS)],
        ([f"{first} → {second}", metric, *map(str, row)] for (first, second, metric), row in cells.items()),
    )
    inner = {key: row[1:-1] for key, row in cells.items()}
    mixed = [cell for row in inner.values() for cell in row]
    report.figures(
        "migration_quality",
        {
            "between_share": sum(cell.within for cell in mixed) / len(mixed),
            "cells": len(mixed),
            "strictly_between": sum(cell.beyond == 0.0 for cell in mixed) / len(mixed),
            "beyond_max": round(max(cell.beyond for cell in mixed), 4),
            **{
                f"{name}_facts": round(cells[name, second, "facts"][-1].value, 4)
                for name, second in (("target", "small"), ("small", "target"), ("other", "target"))
            },
            "questions": len(items),
            "seconds": round(time.monotonic() - began),
        },
    )
