"""Plot of a sweep: over the first axis, a line per combination of the others, a panel per figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tandem.simulator.results.plot import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3

Summary = Mapping[str, Any]


class Panel(NamedTuple):
    """One figure of a summary.

    value: None if a simulation has no such figure.
    most: upper end of the vertical axis; None for that of the data.
    """

    title: str
    unit: str
    value: Callable[[Summary], float | None]
    most: float | None = None


def _ms(times: str, which: str) -> Callable[[Summary], float | None]:
    return lambda summary: None if summary[times] is None else 1e3 * summary[times][which]


def _stalled(summary: Summary) -> float | None:
    return None if summary["reading"] is None else float(summary["reading"]["stalled_share"])


def _fused(summary: Summary) -> float | None:
    share: float | None = summary["modes"].get("speculative", {}).get("fused_share")
    return share


PANELS = (
    Panel("Mean TTFT", "ms", _ms("ttft_s", "mean")),
    Panel("P99 of TTFT", "ms", _ms("ttft_s", "p99")),
    Panel("Mean TPOT", "ms", _ms("tpot_s", "mean")),
    Panel("Requests", "requests/s", lambda summary: summary["requests_per_s"]),
    Panel("Output", "tokens/s", lambda summary: summary["tokens_per_s"]),
    Panel("Servers busy", "share of the time", lambda s: sum(s["utilisation"]) / len(s["utilisation"]), 1.0),
    Panel("Fused rounds", "share of rounds", _fused, 1.0),
    Panel("Answers that stalled", "share of answers", _stalled, 1.0),
    Panel("Failed", "requests", lambda summary: summary["failed"]),
)
"""Panels; those that are 0 everywhere, or without a value, are left out."""
HEADROOM = 1.08
"""Top of a panel without a limit, over its highest point, which would lie on the frame otherwise."""


def plot_sweep(points: Sequence[tuple[Mapping[str, Any], Summary]], name: str, path: str | Path) -> None:
    """Write the plot as PNG, SVG or PDF, by the path's suffix.

    points: settings, always with the same keys in the same order, and the summary of each simulation.
    """
    (key, *others) = points[0][0]
    lines: dict[str, list[tuple[Any, Summary]]] = {}
    for settings, summary in points:
        line = ", ".join(f"{_last(other)} = {_said(settings[other])}" for other in others)
        lines.setdefault(line, []).append((settings[key], summary))
    shown = [panel for panel in PANELS if any(panel.value(summary) for _, summary in points)]
    figure, panels = canvas(-(-len(shown) // COLUMNS), COLUMNS)
    for panel, axes in zip(shown, panels, strict=False):
        for line, found in lines.items():
            _draw(axes, panel, line, found)
        top = panel.most or HEADROOM * axes.dataLim.y1
        axes.set(title=panel.title, xlabel=key, ylabel=f"{panel.unit} (simulated)", ylim=(0, top))
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    if others:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=COLUMNS)
    figure.suptitle(name)
    figure.savefig(path, dpi=120)


def _draw(axes: Axes, panel: Panel, line: str, found: Sequence[tuple[Any, Summary]]) -> None:
    """Draw a line: numbers in order and to scale, other values in the given order, evenly spaced."""
    numbers = all(_is_number(value) for value, _ in found)
    if numbers:
        found = sorted(found, key=lambda point: point[0])
    x = [value if numbers else _said(value) for value, _ in found]
    y = [math.nan if (figure := panel.value(summary)) is None else figure for _, summary in found]
    axes.plot(x, y, marker="o", markersize=4, label=line, clip_on=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _last(key: str) -> str:
    """Return a short form of a dotted key, such as `window.name`."""
    return ".".join(key.split(".")[-2:])


def _said(value: Any) -> str:
    """Return a policy as its name and parameters, other values as Python writes them."""
    if isinstance(value, Mapping) and "name" in value:
        parameters = ", ".join(f"{key} {of}" for key, of in value.get("parameters", {}).items())
        return value["name"] + (f" ({parameters})" if parameters else "")
    return str(value)
