"""A picture of one simulation: how TTFT and TPOT spread, what readers waited for, and how full the pools were."""

from __future__ import annotations

from pathlib import Path

from simulator.analysis import Result


def plot(result: Result, path: str | Path) -> None:
    """Write it as PNG, SVG or PDF, by the path's suffix: four panels, and one for each pool."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    frame = result.frame()
    rows = 2 + -(-len(result.loads) // 2)
    figure = Figure(figsize=(10, 3.5 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    (ttft, tpot), (whole, stalls), *pools = figure.subplots(rows, 2)
    for axes, column, name in ((ttft, "ttft_s", "TTFT"), (tpot, "tpot_s", "TPOT")):
        values = frame[column].dropna().sort_values() * 1e3
        axes.plot(values, [(i + 1) / len(values) for i in range(len(values))])
        axes.set(
            title=f"{name} of requests", xlabel=f"{name} (ms, simulated)", ylabel="share of requests ≤ x"
        )
    whole.scatter(frame["arrival_s"], frame["e2e_s"].astype(float), s=6)
    whole.set(title="Time to the last token", xlabel="arrival (s, simulated)", ylabel="seconds")
    if frame["stall_s"].notna().any():
        stalls.scatter(frame["arrival_s"], frame["stall_s"].astype(float), s=6)
        stalls.set(title="Waits of readers", xlabel="arrival (s, simulated)", ylabel="seconds in all")
    else:
        stalls.set_axis_off()  # nobody reads along
    panels = [axes for row in pools for axes in row]
    for axes, (pool, loads) in zip(panels, result.loads.items(), strict=False):
        axes.step([load.time_s for load in loads], [load.sessions for load in loads], where="post")
        axes.set(title=f"Open sessions: {pool}s", xlabel="time (s, simulated)", ylim=(0, None))
    for axes in panels[len(result.loads) :]:
        axes.set_axis_off()
    for axes in figure.axes:
        axes.grid(alpha=0.3)
    figure.suptitle(
        f"{result.config.name}: {len(result.answers)} requests, mode {result.config.mode or 'by policy'}"
    )
    figure.savefig(path, dpi=120)
