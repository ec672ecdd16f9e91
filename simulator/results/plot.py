"""Plot of one simulation: TTFT, TPOT, stalls and the pools' loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tandem.simulator.results.analysis import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def canvas(rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and its panels, row by row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * columns, 3.5 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels:
        axes.grid(alpha=0.3)
    return figure, panels


def from_zero(axes: Axes, least: float = 0.0) -> None:
    """Start both axes at 0; the vertical one reaches to `least` or higher."""
    axes.set_xlim(left=0)
    axes.set_ylim(0, max(axes.get_ylim()[1], least))


def plot(result: Result, path: str | Path) -> None:
    """Write the plot as PNG, SVG or PDF, by the path's suffix: four panels, and one for each pool."""
    from matplotlib.ticker import MaxNLocator

    frame = result.frame()
    figure, (ttft, tpot, whole, stalls, *pools) = canvas(2 + -(-len(result.loads) // 2), 2)
    for axes, column, name in ((ttft, "ttft_s", "TTFT"), (tpot, "tpot_s", "TPOT")):
        values = frame[column].dropna().sort_values() * 1e3
        axes.step(values, [(i + 1) / len(values) for i in range(len(values))], where="post")
        axes.set(
            title=f"{name} of requests", xlabel=f"{name} (ms, simulated)", ylabel="share of requests ≤ x"
        )
        from_zero(axes)
        axes.set_ylim(0, 1)
    whole.scatter(frame["arrival_s"], frame["e2e_s"].astype(float), s=6)
    whole.set(title="Time to the last token", xlabel="arrival (s, simulated)", ylabel="seconds")
    from_zero(whole)
    if frame["stall_s"].notna().any():
        stalls.scatter(frame["arrival_s"], frame["stall_s"].astype(float), s=6)
        stalls.set(title="Waits of readers", xlabel="arrival (s, simulated)", ylabel="seconds in all")
        from_zero(stalls, least=0.1)
    else:
        stalls.set_axis_off()  # no readers
    for axes, (pool, loads) in zip(pools, result.loads.items(), strict=False):
        axes.step([load.time_s for load in loads], [load.sessions for load in loads], where="post")
        axes.set(title=f"Open sessions: {pool}s", xlabel="time (s, simulated)", ylabel="sessions")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        from_zero(axes, least=1)
    for axes in pools[len(result.loads) :]:
        axes.set_axis_off()
    figure.suptitle(
        f"{result.config.name}: {len(result.answers)} requests, mode {result.config.mode or 'by policy'}"
    )
    figure.savefig(path, dpi=120)
