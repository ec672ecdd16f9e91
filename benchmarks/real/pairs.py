"""Drafts between two models, also of two vocabularies: how many are drafted and accepted in rounds of real text.

    tandem benchmark real_pairs [--target T.gguf] [--drafter D.gguf] [--prompts 8] [--tokens 48] [--window 4]

Rounds as in mode `speculative`, without an application. At temperature 1 drafts are sampled, with their distributions,
or greedy; between two vocabularies sampled ones travel token by token, greedy ones as text. The load of the machine
changes nothing but the time it takes.

alpha_SET, alpha_SET_sampled, alpha_SET_greedy: accepted drafts as a share of judged ones, at temperature 0, and of
sampled and greedy drafts at 1.
tokens_SET, tokens_SET_sampled, tokens_SET_greedy: tokens of a round.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.benchmarks import report
from tandem.benchmarks.paths import DATA, MODELS, NO_DATA
from tandem.benchmarks.real.tasks import tasks
from tandem.deployments.modes.speculative.mode import drafting
from tandem.deployments.pools.engines import LlamacppSettings, build_engine
from tandem.deployments.pools.models import model_folder
from tandem.engine.base import Engine, InvalidRequest, Sampling
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.translated.engine import Translated

SETS = ("HumanEval", "Vicuna")
WAYS = {"": (0.0, "greedy"), "_sampled": (1.0, "sampled"), "_greedy": (1.0, "greedy")}
"""Temperatures, and how drafts are drawn, by the suffix of their figures."""


@dataclass
class Rounds:
    """Counts of rounds: drafted, judged and accepted drafts, and tokens of the output."""

    rounds: int = 0
    drafted: int = 0
    judged: int = 0
    accepted: int = 0
    tokens: int = 0


async def play(
    target: Engine,
    drafter: Engine,
    prompt: Sequence[int],
    samplings: tuple[Sampling, Sampling],
    window: int,
    counts: Rounds,
) -> None:
    """Add the rounds of one answer to the counts. samplings: the target's and the drafter's."""
    there, here = await target.open(prompt, samplings[0]), await drafter.open(prompt, samplings[1])
    known, new, finish = 0, list[int](), None
    while finish is None:
        draft = await here.draft(known, new, window)
        verdict = await there.verify(draft.ids, draft.probs)
        known, new, finish = known + len(new), verdict.ids, verdict.finish
        counts.rounds += 1
        counts.drafted += len(draft.ids)
        counts.judged += min(verdict.accepted + 1, len(draft.ids))
        counts.accepted += verdict.accepted
        counts.tokens += len(new)
    await there.cancel()
    await here.cancel()


async def measure(options: Options) -> dict[str, float]:
    """Print the table, and return its figures."""
    threads = len(os.sched_getaffinity(0))
    paths = [str(options.models / name) for name in (options.target, options.drafter)]
    target, own = [
        build_engine(
            LlamacppSettings(
                kind="llamacpp", model=path, threads=threads, max_sessions=1, kv_blocks=128, lookup=0
            )
        )
        for path in paths
    ]
    here, there = [Tokenizer.load(model_folder(path)) for path in paths]
    drafter: Engine = own if here.vocabulary == there.vocabulary else Translated(own, here, there)
    figures, rows = dict[str, float](), list[list[str]]()
    asked = [task for task in tasks(options.prompts, DATA / "prompts") if task.set in SETS]
    for name in SETS:
        for suffix, (temperature, drawn) in WAYS.items():
            counts = Rounds()
            for seed, task in enumerate(report.progress([t for t in asked if t.set == name], name)):
                prompt = here.render_chat([{"role": "user", "content": task.question}])
                sampling = Sampling(max_tokens=options.tokens, temperature=temperature, seed=seed)
                both = sampling, drafting(sampling, probs=drawn == "sampled")
                await play(target, drafter, prompt, both, options.window, counts)
            figures[f"alpha_{name}{suffix}"] = alpha = round(counts.accepted / counts.judged, 3)
            figures[f"tokens_{name}{suffix}"] = tokens = round(counts.tokens / counts.rounds, 2)
            drafted = counts.drafted / counts.rounds
            share = f"{counts.accepted / counts.drafted:.0%}"
            rows.append(
                [name, f"{temperature:g}", drawn, f"{drafted:.1f}", share, f"{alpha:.2f}", f"{tokens:.1f}"]
            )
    await target.close()
    await drafter.close()
    columns = ("prompts", "temperature", "drafts", "drafts a round", "accepted", "α", "tokens a round")
    report.table(f"{options.drafter} drafts for {options.target}", columns, rows)
    return figures


@dataclass(frozen=True)
class Options:
    """Options of the command line."""

    models: Path
    target: str
    drafter: str
    prompts: int
    tokens: int
    window: int


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("real_pairs", __doc__)
    parser.add_argument("--models", type=Path, default=MODELS, help="folder of the models")
    parser.add_argument("--target", default="qwen2.5-coder-1.5b.gguf")
    parser.add_argument("--drafter", default="smollm2-135m.gguf", help="of any vocabulary")
    parser.add_argument("--prompts", type=int, default=8, help="of each set (default 8)")
    parser.add_argument("--tokens", type=int, default=48, help="of an answer (default 48)")
    parser.add_argument("--window", type=int, default=4, help="drafts of a round (default 4)")
    options = Options(**vars(parser.parse_args(arguments)))
    if not (DATA / "prompts").is_dir():
        raise SystemExit(NO_DATA)
    try:
        figures = asyncio.run(measure(options))
    except InvalidRequest as error:
        raise SystemExit(f"{options.drafter} cannot read the target's prompts: {error}") from None
    report.figures("real_pairs", figures)
