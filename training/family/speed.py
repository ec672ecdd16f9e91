"""Speed of the family in the torch engine: `python -m tandem.training.family.speed`.

Prints a table, and as its last line one JSON object with the medians. The models take turns in every round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tandem.engine.base import Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.core.engine import CoreEngine
from tandem.engine.family import EXPANDERS, NAMES, path
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.engine import load
from tandem.training.family.evaluate import ANSWER_TOKENS
from tandem.training.family.prompts import answer_prompt, heldout

TOGETHER = 8
FIGURES = {
    "load_s": "seconds to load",
    "tokens_per_s": "tokens/s, one answer at a time",
    "tokens_per_s_together": f"tokens/s, {TOGETHER} answers at once",
}


async def measure(name: str, questions: Sequence[str], threads: int) -> dict[str, float]:
    """The figures of one model in one round; tokens are those of greedy answers, seconds include their prompts."""
    tokenizer = Tokenizer.load(path(name))
    prompts = [tokenizer.encode(answer_prompt(question)) for question in questions]
    began_s = time.perf_counter()
    engine = load(path(name), EngineConfig(), device="cpu", threads=threads)
    load_s = time.perf_counter() - began_s
    try:
        await _answer(engine, prompts[:1])  # warms up
        alone = await _tokens_per_s(engine, [[prompt] for prompt in prompts])
        together = await _tokens_per_s(
            engine, [prompts[i : i + TOGETHER] for i in range(0, len(prompts), TOGETHER)]
        )
    finally:
        await engine.close()
    return dict(zip(FIGURES, (load_s, alone, together), strict=True))


async def _tokens_per_s(engine: CoreEngine, batches: Sequence[Sequence[list[int]]]) -> float:
    began_s = time.perf_counter()
    tokens = sum([await _answer(engine, batch) for batch in batches])
    return tokens / (time.perf_counter() - began_s)


async def _answer(engine: CoreEngine, prompts: Sequence[list[int]]) -> int:
    """Answer them at once; returns the number of tokens."""

    async def one(prompt: list[int]) -> int:
        session = await engine.open(prompt, Sampling(max_tokens=ANSWER_TOKENS))
        tokens = 0
        async for part in session.generate():
            tokens += len(part.ids)
        await session.cancel()
        return tokens

    return sum(await asyncio.gather(*map(one, prompts)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tandem.training.family.speed", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "models", nargs="*", default=["target", *EXPANDERS], help="of the family (target, expanders)"
    )
    parser.add_argument("--questions", type=int, default=8, help="with long answers (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="in which the models take turns (%(default)s)")
    parser.add_argument("--seed", type=int, default=11, help="of the questions (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.models) - set(NAMES)
    if unknown:
        parser.error(f"not in the family: {', '.join(sorted(unknown))}")
    questions = [item.question for item in heldout(chosen.questions, seed=chosen.seed)]
    console = Console(width=120)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in chosen.models}
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("rounds", total=chosen.rounds * len(rounds))
        for _ in range(chosen.rounds):
            for name, found in rounds.items():
                found.append(asyncio.run(measure(name, questions, chosen.threads)))
                progress.advance(bar)
    table = Table(
        "model",
        *FIGURES.values(),
        title=f"median (least to most) of {chosen.rounds} rounds, {chosen.threads} threads",
    )
    medians: dict[str, dict[str, float]] = {}
    for name, found in rounds.items():
        by_figure = {figure: [figures[figure] for figures in found] for figure in FIGURES}
        medians[name] = {figure: round(median(values), 4) for figure, values in by_figure.items()}
        table.add_row(name, *(_shown(values) for values in by_figure.values()))
    console.print(table)
    print(json.dumps({"benchmark": "family speed", "figures": medians}))


def _shown(values: Sequence[float]) -> str:
    middle, least, most = (
        f"{value:.2f}" if value < 10 else f"{value:,.0f}"
        for value in (median(values), min(values), max(values))
    )
    return f"{middle} ({least} to {most})"


if __name__ == "__main__":
    main()
