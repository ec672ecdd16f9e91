"""`tandem simulate` and `tandem sweep`: the simulator on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cluster.simulator.analysis import Result
from cluster.simulator.config import ConfigError, load
from cluster.simulator.plot import plot
from cluster.simulator.run import simulate
from cluster.simulator.sweep import grid, sweep


def run_simulation(path: Path, overrides: Sequence[str], out: Path | None, picture: Path | None) -> None:
    """Simulate a configuration file, show the summary, and write results and picture where asked to."""
    config = load(path, overrides)
    with _progress() as progress:
        task = progress.add_task("requests", total=config.workload.count)
        result = simulate(config, lambda count: progress.advance(task, count))
    _show(result)
    if out is not None:
        result.write(out)
    if picture is not None:
        plot(result, picture)


def run_sweep(path: Path, vary: Sequence[str], out: Path) -> None:
    """Simulate every combination, and show a line for each."""
    configs = grid(_raw(path), vary, str(path))
    table = Table("settings", "requests/s", "TTFT ms", "TPOT ms", "fused", title="Simulated (mean values)")
    with _progress() as progress:
        task = progress.add_task("simulations", total=len(configs))
        for point in sweep(configs, out):
            progress.advance(task)
            table.add_row(" ".join(f"{k}={v}" for k, v in point.settings.items()), *_cells(point.summary))
    Console().print(table)


def _raw(path: Path) -> Mapping[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a mapping is expected")
    return raw


def _cells(summary: Mapping[str, Any]) -> list[str]:
    fused = summary["fused_share"]
    return [
        f"{summary['requests_per_s']:.2f}",
        _mean_ms(summary["ttft_s"]),
        _mean_ms(summary["tpot_s"]),
        "–" if fused is None else f"{fused:.0%}",
    ]


def _mean_ms(spread: Mapping[str, float] | None) -> str:
    return "–" if spread is None else f"{spread['mean'] * 1e3:.1f}"


def _show(result: Result) -> None:
    console, summary = Console(highlight=False), result.summary()
    table = Table(
        "", "mean", "p50", "p90", "p99", title=f"{result.config.name} (simulated time, milliseconds)"
    )
    for name, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("end to end", "e2e_s")):
        spread = summary[key]
        if spread is not None:
            table.add_row(name, *(f"{spread[p] * 1e3:.1f}" for p in ("mean", "p50", "p90", "p99")))
    console.print(table)
    console.print(
        f"{summary['requests']} requests at {summary['requests_per_s']:.2f} requests/s, "
        f"{summary['tokens_per_s']:.0f} tokens/s; servers busy "
        f"{sum(summary['utilisation']) / len(summary['utilisation']):.0%}"
    )
    if summary["drafted"]:
        window = "" if summary["window"] is None else f", mean window {summary['window']:.2f} tokens"
        console.print(
            f"acceptance {summary['acceptance']:.3f}{window}, {summary['fused_share']:.0%} of rounds fused"
        )
    for timer, sources in result.estimates.items():
        guessed = sorted(op for op, source in sources.items() if "table" not in source[:5])
        if guessed:
            console.print(f"[yellow]{timer}: not from a table of its own: {', '.join(guessed)}[/yellow]")
    console.print(
        f"{summary['events']} events in {result.run_s:.2f} s of real time "
        f"({summary['events'] / max(result.run_s, 1e-9):,.0f}/s), set up in {result.setup_s:.2f} s"
    )


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        transient=True,
    )
