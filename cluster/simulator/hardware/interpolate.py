"""Linear interpolation over profiled points: a curve, and a grid of curves.

Beyond the last point a curve goes on with its last slope, before the first it stays as it is; a grid does
the same across its rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from statistics import median


class Curve:
    """y over x; several y of one x count with their median. Raises ValueError without points."""

    __slots__ = ("xs", "ys")

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        by_x: dict[float, list[float]] = {}
        for x, y in points:
            by_x.setdefault(x, []).append(y)
        if not by_x:
            raise ValueError("a curve needs at least one point")
        self.xs = sorted(by_x)
        self.ys = [median(by_x[x]) for x in self.xs]

    def at(self, x: float) -> float:
        xs, ys = self.xs, self.ys
        if x <= xs[0] or len(xs) == 1:
            return ys[0]
        i = min(bisect_right(xs, x), len(xs) - 1)
        x0, y0 = xs[i - 1], ys[i - 1]
        return y0 + (ys[i] - y0) * (x - x0) / (xs[i] - x0)


class Grid:
    """z over (row, column): a curve per row."""

    __slots__ = ("_curves", "_rows")

    def __init__(self, points: Mapping[int, Iterable[tuple[float, float]]]) -> None:
        curves = {row: Curve(points[row]) for row in points}
        self._rows = sorted(curves)
        self._curves = [curves[row] for row in self._rows]

    def points(self) -> Iterator[tuple[int, float, float]]:
        """(row, column, value) of every point."""
        for row, curve in zip(self._rows, self._curves, strict=True):
            for x, y in zip(curve.xs, curve.ys, strict=True):
                yield row, x, y

    def at(self, row: float, column: float) -> float:
        rows = self._rows
        if row <= rows[0] or len(rows) == 1:
            return self._curves[0].at(column)
        i = min(bisect_right(rows, row), len(rows) - 1)
        low = self._curves[i - 1].at(column)
        if row == rows[i - 1]:
            return low
        return low + (self._curves[i].at(column) - low) * (row - rows[i - 1]) / (rows[i] - rows[i - 1])
