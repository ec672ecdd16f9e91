"""`tandem simulate` and `tandem sweep`: the simulator on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tandem.app.cli.terminal.render import plain, show_table
from tandem.simulator.config.config import load, read
from tandem.simulator.results.analysis import Result
from tandem.simulator.results.map_plot import plot_map
from tandem.simulator.results.mode_map import Played, Point
from tandem.simulator.results.plot import plot
from tandem.simulator.results.sweep_plot import plot_sweep
from tandem.simulator.runs.mode_map import asked, mapped, play_all
from tandem.simulator.runs.run import simulate
from tandem.simulator.runs.sweep import grid, sweep


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


def run_sweep(
    path: Path, overrides: Sequence[str], vary: Sequence[str], out: Path, picture: Path | None
) -> None:
    """Simulate every combination, show a line for each, and draw a picture where asked to."""
    variants = grid(read(path), vary, str(path), overrides)
    summaries: dict[str, Mapping[str, Any]] = {}
    with _progress() as progress:
        task = progress.add_task("simulations", total=len(variants))
        for point in sweep(variants, out):
            progress.advance(task)
            summaries[point.key] = point.summary
    console = Console(highlight=False)
    console.print("Simulated, mean values")
    columns = ("requests/s", "TTFT ms", "TPOT ms", "fused", "stalled", "failed")
    rows = ([*map(plain, variant.settings.values()), *_cells(summaries[variant.key])] for variant in variants)
    show_table(console, (*variants[0].settings, *columns), rows)
    if picture is not None:
        swept = [(variant.settings, summaries[variant.key]) for variant in variants]
        plot_sweep(swept, variants[0].config.name, picture)


def run_map(
    path: Path,
    overrides: Sequence[str],
    axes: Sequence[str],
    objective: str,
    out: Path | None,
    picture: Path | None,
) -> None:
    """Simulate every mode and policy `auto` at every point, show which mode is the best where, and draw it where asked
    to."""
    simulations = asked(read(path), axes, objective, str(path), overrides)
    with _progress() as progress:
        found = mapped(
            simulations,
            progress.track(play_all(simulations, out), len(simulations), description="simulations"),
        )
    console = Console(highlight=False)
    console.print(
        f"Simulated: the mode with the least mean loss (waits, dollars, quality) in the objective {objective}, "
        "and policy auto, which chooses for each request"
    )
    columns = ("best mode", "TTFT ms", "TPOT ms", "$/1,000", "next", "auto", "picks")
    show_table(console, (*found[0].settings, *columns), ([*_point(one)] for one in found))
    if picture is not None:
        plot_map(found, str(read(path).get("name", path.stem)), picture)


def _point(point: Point) -> Iterator[str]:
    """Yield a line of the map: the settings, the best mode's figures, and how much the next one and `auto` lose."""
    yield from map(plain, point.settings.values())
    picks = sorted(point.auto.picked.items(), key=lambda pick: -pick[1])
    said = ", ".join(f"{mode} {share:.0%}" for mode, share in picks[:2])
    if not point.fixed:
        yield from ("none", "–", "–", "–", "–", "–", said or "–")
        return
    best = point.fixed[0]
    yield best.mode
    yield from (_ms(best.ttft_s), _ms(best.tpot_s), f"{1e3 * best.usd:.3g}")
    yield f"{point.fixed[1].mode} {_loses(point.fixed[1], best)}" if len(point.fixed) > 1 else "–"
    yield _loses(point.auto, best)
    yield said or "–"


def _loses(one: Played, best: Played) -> str:
    return f"{one.loss_usd / best.loss_usd - 1:+.0%}"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.1f}"


def _cells(summary: Mapping[str, Any]) -> list[str]:
    fused = summary["modes"].get("speculative", {}).get("fused_share")
    return [
        f"{summary['requests_per_s']:.2f}",
        _mean_ms(summary["ttft_s"]),
        _mean_ms(summary["tpot_s"]),
        "–" if fused is None else f"{fused:.0%}",
        "–" if summary["reading"] is None else f"{summary['reading']['stalled_share']:.0%}",
        str(summary["failed"] or "–"),
    ]


def _mean_ms(spread: Mapping[str, float] | None) -> str:
    return _ms(None if spread is None else spread["mean"])


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
    rounds = summary["modes"].get("speculative", {})
    if rounds.get("drafted"):
        window = "" if rounds["mean_window"] is None else f", mean window {rounds['mean_window']:.2f} tokens"
        console.print(
            f"acceptance {rounds['acceptance']:.3f}{window}, {rounds['fused_share']:.0%} of rounds fused"
        )
    for line in (*_reading(summary), *_costs(summary), *_failures(summary)):
        console.print(line)
    for hardware, sources in result.estimates.items():
        _show_sources(console, hardware, sources)
    console.print(
        f"{summary['events']} events in {result.run_s:.2f} s of real time "
        f"({summary['events'] / max(result.run_s, 1e-9):,.0f}/s), set up in {result.setup_s:.2f} s"
    )


def _reading(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the readers' figures."""
    if (reading := summary["reading"]) is not None:
        yield (
            f"readers: {reading['stalled_share']:.1%} of answers stalled, {reading['stall_mean_s'] * 1e3:.1f} ms on "
            f"average and {reading['stall_max_s'] * 1e3:.1f} ms at most; effective throughput "
            f"{reading['effective_throughput']:.0f} of {reading['throughput']:.0f} tokens/s, QoS {reading['qos']:.2f}/s"
        )


def _costs(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield dollars, joules and budgets."""
    joules = summary["device_joules"]
    yield f"cost {summary['usd']:.4g} USD" + (f", devices {joules:.4g} J" if joules else "")
    for side, budget in summary["budgets"].items():
        yield (
            f"races: the {side} took in {budget['share']:.1%} of the last {budget['prompt_tokens']:,} prompt tokens "
            "that its budget counts"
        )


def _failures(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the failures."""
    if summary["failed"]:
        codes = ", ".join(f"{count} {code}" for code, count in summary["failures"].items())
        yield f"[red]{summary['failed']} requests failed: {codes}[/red]"
    if summary["cut"]:
        yield f"[yellow]{summary['cut']} answers were cut at a limit before their end[/yellow]"
    if summary["replans"]:
        yield f"went on elsewhere {summary['replans']} times"


_HOW_SURE = (  # how a source begins, and what that means
    ("scaled from", "from tables of other models or GPUs"),
    ("roofline", "without any table"),
    ("assumed", "assumed"),
)


def _show_sources(console: Console, hardware: str, sources: Mapping[str, str]) -> None:
    """Print the sources of times that are not profiled, by how sure they are; and how steps are formed."""
    for begins, means in _HOW_SURE:
        unsure = [
            f"{operator} {source[source.find('±') : -1]}".strip() if "±" in source else operator
            for operator, source in sources.items()
            if source.startswith(begins)
        ]
        if unsure:
            console.print(f"[yellow]{hardware}: {means}: {', '.join(unsure)}[/yellow]")
    if "batching" in sources:
        console.print(f"{hardware}: batching {sources['batching']}")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        transient=True,
    )
