"""The report of `tandem bench`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress

from tandem.app.cli.bench.load import PROMPTS, LoadResult, generate_load, percentiles
from tandem.app.cli.terminal.render import show_table
from tandem.app.client.http import ClientError

SHOWN = ("p50", "p90", "p99")


def run_bench(
    url: str,
    request: dict[str, Any],
    requests: int,
    concurrency: int,
    prompts: Sequence[str] | None = None,
    as_json: bool = False,
) -> None:
    """Load the server, with a progress bar, and print the report. Raises ClientError if no answer came."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(f"{concurrency} at a time", total=requests)
        result = asyncio.run(
            generate_load(
                url, request, requests, concurrency, prompts or PROMPTS, lambda: progress.advance(bar)
            )
        )
    if not result.timings:
        raise ClientError(f"no answer came: {result.failures[0]}")
    if as_json:
        print(json.dumps(summary(result)))
    else:
        report(result, Console(highlight=False))


def summary(result: LoadResult) -> dict[str, Any]:
    """Return the result for programs: seconds, tokens, and each time's median, 90th and 99th percentile."""
    times = {
        "ttft_s": [t.ttft_s for t in result.timings],
        "tpot_s": [t.tpot_s for t in result.timings],
        "total_s": [t.total_s for t in result.timings],
    }
    return {
        **{name: dict(zip(SHOWN, percentiles(values), strict=True)) for name, values in times.items()},
        "answers": len(result.timings),
        "tokens": sum(t.tokens for t in result.timings),
        "wall_s": result.wall_s,
        "tokens_per_s": result.tokens_per_s,
        "answers_per_s": len(result.timings) / result.wall_s,
        "failures": dict(Counter(result.failures).most_common()),
    }


def report(result: LoadResult, console: Console) -> None:
    """Print the result."""
    found = summary(result)
    times = {"TTFT ms": "ttft_s", "TPOT ms": "tpot_s", "total ms": "total_s"}
    rows = [(name, *(f"{found[key][share] * 1e3:.2f}" for share in SHOWN)) for name, key in times.items()]
    show_table(console, ("", *SHOWN), rows)
    print(
        "{answers} answers, {tokens} tokens in {wall_s:.2f} s: {tokens_per_s:.1f} tokens/s, "
        "{answers_per_s:.2f} answers/s".format(**found)
    )
    for reason, count in found["failures"].items():
        print(f"{count} failed: {reason}")
