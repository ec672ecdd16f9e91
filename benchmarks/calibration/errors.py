"""Figures of both worlds side by side, and how far they are apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean
from typing import NamedTuple

from tandem.benchmarks import report

Figures = dict[str, float]


class Compared(NamedTuple):
    """Figures of a case, live and simulated, by name: seconds, but for names in RATES.

    case: the row's name.
    group: of the errors that it counts among.
    """

    case: str
    group: str
    live: Figures
    simulated: Figures


RATES = ("throughput", "rate")
"""Figures in tokens/s."""


def show(title: str, columns: Sequence[str], compared: Iterable[Compared]) -> Figures:
    """Print a table; return GROUP_FIGURE_error: the relative error of the simulated figure, mean over the group."""
    rows: list[list[str]] = []
    errors: dict[str, list[float]] = {}
    for one in compared:
        rows.append([one.case, *(_pair(name, one.live[name], one.simulated[name]) for name in one.live)])
        for name, live in one.live.items():
            errors.setdefault(f"{one.group}_{name}_error", []).append(abs(one.simulated[name] / live - 1))
    report.table(title, ["", *columns], rows)
    return {name: round(mean(found), 4) for name, found in errors.items()}


def _pair(name: str, live: float, simulated: float) -> str:
    scale, digits = (1.0, 1) if name in RATES else (1e3, 1)
    return f"{live * scale:.{digits}f} → {simulated * scale:.{digits}f}"
