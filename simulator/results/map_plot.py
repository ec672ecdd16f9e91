"""Plot of a map of modes: the best fixed mode at every point, and beside it what policy `auto` picks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.deployments.modes import MODES
from tandem.simulator.results.mode_map import Point
from tandem.simulator.results.plot import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = dict(zip(MODES, ("C0", "C2", "C1", "C4", "C5", "C8"), strict=False))


def plot_map(points: Sequence[Point], name: str, path: str | Path) -> None:
    """Write the plot as PNG, SVG or PDF, by the path's suffix. points: over one or two settings, all with the same."""
    figure, panels = canvas(1, 2)
    best = [(p, p.fixed[0].mode if p.fixed else "", p.ahead) for p in points]
    auto = [(p, p.favourite, p.auto_ahead if p.fixed else 0.0) for p in points]
    for axes, cells, title in (
        (panels[0], best, "Best fixed mode: its loss beside the next one's"),
        (panels[1], auto, "Policy auto's favourite: its loss beside the best's"),
    ):
        _draw(axes, cells, title)
    figure.suptitle(f"{name} (simulated)")
    figure.savefig(path, dpi=120)


def _draw(axes: Axes, cells: Sequence[tuple[Point, str, float]], title: str) -> None:
    keys = list(cells[0][0].settings)
    across = list(dict.fromkeys(str(point.settings[keys[0]]) for point, _, _ in cells))
    up = list(dict.fromkeys(_upper(point) for point, _, _ in cells))
    for point, mode, ahead in cells:
        x, y = across.index(str(point.settings[keys[0]])), up.index(_upper(point))
        axes.axvspan(
            x - 0.5, x + 0.5, y / len(up), (y + 1) / len(up), color=COLOURS.get(mode, "C7"), alpha=0.45, lw=0
        )
        axes.text(x, y, f"{mode or 'none'}\n{-ahead:+.0%}", ha="center", va="center", fontsize=8)
    axes.set(
        title=title,
        xlabel=keys[0],
        ylabel=", ".join(keys[1:]),
        xlim=(-0.5, len(across) - 0.5),
        ylim=(-0.5, len(up) - 0.5),
    )
    axes.set_xticks(range(len(across)), across)
    axes.set_yticks(range(len(up)), up)
    axes.grid(visible=False)


def _upper(point: Point) -> str:
    """Return the settings of the vertical axis in words."""
    values: list[Any] = list(point.settings.values())[1:]
    return ", ".join(map(str, values))
