"""Cost of a form to an engine: masks as a share of decoding, and drafts accepted with and without a form.

    tandem benchmark mask [--target target] [--drafter small] [--engine torch] [--rounds 5] [--tokens 96]

Greedy answers of a JSON schema and free ones, in alternation; `--target` and `--drafter` may be paths of models.

mask_share: seconds in masks as a share of an answer's, the median of rounds. The bar is 0.05.
alpha_form, alpha_free: accepted drafts as a share of judged ones.
"""

from __future__ import annotations

import asyncio
import json
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any
from unittest.mock import patch

from tandem.benchmarks import report
from tandem.benchmarks.real.pairs import Rounds, play
from tandem.deployments.pools.engines import LlamacppSettings, TorchSettings, build_engine
from tandem.deployments.pools.models import model_folder
from tandem.engine.base import Engine, Grammar, Sampling
from tandem.engine.text.grammar import Matcher
from tandem.engine.text.tokenizer import Tokenizer

BAR = 0.05
QUESTION = "Tell me about the town of Marworth."
TEXT = {"type": "string"}
SCHEMA = {
    "type": "object",
    "properties": {"name": TEXT, "river": TEXT, "bridges": {"type": "integer"}, "about": TEXT, "more": TEXT},
    "required": ["name", "river", "bridges", "about", "more"],
    "additionalProperties": False,
}
FORM = Grammar("json_schema", json.dumps(SCHEMA), strict=True)


@contextmanager
def watched() -> Iterator[list[float]]:
    """Yield the seconds of each mask that a matcher of this process makes meanwhile."""
    seconds, forbidden = list[float](), Matcher.forbidden

    def timed(matcher: Matcher, *given: Any) -> Any:
        began = time.perf_counter()
        try:
            return forbidden(matcher, *given)
        finally:
            seconds.append(time.perf_counter() - began)

    with patch.object(Matcher, "forbidden", timed):
        yield seconds


def engine(options: Namespace, model: str) -> Engine:
    kind = LlamacppSettings if options.engine == "llamacpp" else TorchSettings
    return build_engine(kind(kind=options.engine, model=model, max_sessions=2, kv_blocks=256))


async def answer_s(target: Engine, prompt: Sequence[int], sampling: Sampling) -> tuple[float, int]:
    """Return the seconds from an answer's first tokens to its last, and the tokens between."""
    session = await target.open(prompt, sampling)
    began, tokens = 0.0, 0
    async for some in session.generate():
        if not began:
            began = time.perf_counter()
        else:
            tokens += len(some.ids)
    took = time.perf_counter() - began
    await session.cancel()
    return took, tokens


async def measure(options: Namespace) -> dict[str, float]:
    """Print the table, and return its figures."""
    target, drafter = engine(options, options.target), engine(options, options.drafter)
    tokenizer = Tokenizer.load(model_folder(options.target))
    prompt = tokenizer.render_chat([{"role": "user", "content": QUESTION}])
    free = Sampling(max_tokens=options.tokens, temperature=0.0)
    formed = Sampling(max_tokens=options.tokens, temperature=0.0, grammar=FORM)
    shares: list[float] = []
    steps: dict[str, list[float]] = {"form": [], "free": []}
    await answer_s(target, prompt, formed)  # compiles the form
    for _ in report.progress(range(options.rounds), "rounds"):
        for name, sampling in (("form", formed), ("free", free)):
            with watched() as masks:
                took, tokens = await answer_s(target, prompt, sampling)
            steps[name].append(took / max(1, tokens))
            if name == "form":
                shares.append(sum(masks) / took)
    counts = {"form": Rounds(), "free": Rounds()}
    for name, sampling in (("form", formed), ("free", free)):
        await play(target, drafter, prompt, (sampling, sampling), 4, counts[name])
    await target.close()
    await drafter.close()
    alpha = {name: count.accepted / max(1, count.judged) for name, count in counts.items()}
    report.table(
        f"Forms, {options.target} on {options.engine} (median [min … max] of {options.rounds} rounds)",
        ["", "ms per token", "masks' share", "drafts accepted"],
        [
            [
                "JSON schema",
                report.milliseconds(steps["form"]),
                report.spread(shares),
                f"{alpha['form']:.2f}",
            ],
            ["free", report.milliseconds(steps["free"]), "", f"{alpha['free']:.2f}"],
        ],
    )
    print(f"The bar for the masks' share is {BAR}: {'kept' if median(shares) <= BAR else 'broken'}.")
    return {
        "mask_share": round(median(shares), 4),
        "alpha_form": round(alpha["form"], 3),
        "alpha_free": round(alpha["free"], 3),
    }


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("mask", __doc__)
    parser.add_argument("--target", default="target", help="model (default target)")
    parser.add_argument("--drafter", default="small", help="model that drafts (default small)")
    parser.add_argument("--engine", choices=("torch", "llamacpp"), default="torch", help="(default torch)")
    parser.add_argument("--rounds", type=int, default=5, help="alternations (default 5)")
    parser.add_argument("--tokens", type=int, default=96, help="most tokens of an answer (default 96)")
    report.figures("mask", asyncio.run(measure(parser.parse_args(arguments))))


if __name__ == "__main__":
    main()
