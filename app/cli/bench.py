"""The report of `tandem bench`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from app.cli.client import ClientError
from app.cli.load import PROMPTS, LoadResult, generate_load, percentiles


def run_bench(
    url: str,
    request: dict[str, Any],
    requests: int,
    concurrency: int,
    prompts: Sequence[str] | None = None,
) -> None:
    """Load the server, with a progress bar, and print the table. Raises ClientError if no answer came."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(f"{concurrency} at a time", total=requests)
        result = asyncio.run(
            generate_load(
                url, request, requests, concurrency, prompts or PROMPTS, lambda: progress.advance(bar)
            )
        )
    if not result.timings:
        raise ClientError(f"no answer came: {result.failures[0]}")
    report(result, Console(highlight=False))


def report(result: LoadResult, console: Console) -> None:
    """A table on a terminal, tab-separated lines otherwise."""
    rows: list[tuple[str, ...]] = [("", "p50", "p90", "p99")]
    for name, values in (
        ("TTFT ms", [t.ttft_s * 1e3 for t in result.timings]),
        ("TPOT ms", [t.tpot_s * 1e3 for t in result.timings]),
        ("total ms", [t.total_s * 1e3 for t in result.timings]),
    ):
        rows.append((name, *(f"{value:.2f}" for value in percentiles(values))))
    if console.is_terminal:
        table = Table(*rows[0])
        for row in rows[1:]:
            table.add_row(*row)
        console.print(table)
    else:
        for row in rows:
            print("\t".join(row))
    tokens = sum(t.tokens for t in result.timings)
    print(
        f"{len(result.timings)} answers, {tokens} tokens in {result.wall_s:.2f} s: "
        f"{result.tokens_per_s:.1f} tokens/s, {len(result.timings) / result.wall_s:.2f} answers/s"
    )
    for reason, count in Counter(result.failures).most_common():
        print(f"{count} failed: {reason}")
