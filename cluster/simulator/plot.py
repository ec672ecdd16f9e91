"""A picture of one simulation: how TTFT, TPOT and the load of the servers spread."""

from __future__ import annotations

from pathlib import Path

from cluster.simulator.analysis import Result


def plot(result: Result, path: str | Path) -> None:
    """Write four panels as PNG, SVG or PDF, by the path's suffix."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    frame = result.frame()
    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasAgg(figure)
    ((ttft, tpot), (over_time, servers)) = figure.subplots(2, 2)
    for axes, column, name in ((ttft, "ttft_s", "TTFT"), (tpot, "tpot_s", "TPOT")):
        values = frame[column].dropna().sort_values() * 1e3
        axes.plot(values, [(i + 1) / len(values) for i in range(len(values))])
        axes.set(
            title=f"{name} of requests", xlabel=f"{name} (ms, simulated)", ylabel="share of requests ≤ x"
        )
    over_time.scatter(frame["arrival_s"], frame["e2e_s"], s=6)
    over_time.set(title="Time to the last token", xlabel="arrival (s, simulated)", ylabel="seconds")
    utilisation = result.summary()["utilisation"]
    servers.bar(range(len(utilisation)), [100 * share for share in utilisation])
    servers.set(title="Servers", xlabel="server", ylabel="busy (%)", ylim=(0, 100))
    for axes in (ttft, tpot, over_time, servers):
        axes.grid(alpha=0.3)
    figure.suptitle(f"{result.config.name}: {len(result.logs)} requests, mode {result.config.mode}")
    figure.savefig(path, dpi=120)
