"""Linear interpolation over profiled points: a curve, a grid of curves, and chunks of a prompt.

Before its first point a curve is constant. Beyond the last one it continues with the slope of its upper half, which is
robust to a few noisy points, and never falls; a grid does so across its rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from statistics import fmean, median


class Curve:
    """y over x; several y of one x count with their median. Raises ValueError without points."""

    __slots__ = ("_slope", "xs", "ys")

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        by_x: dict[float, list[float]] = {}
        for x, y in points:
            by_x.setdefault(x, []).append(y)
        if not by_x:
            raise ValueError("a curve needs at least one point")
        self.xs = sorted(by_x)
        self.ys = [median(ys) if len(ys := by_x[x]) > 1 else ys[0] for x in self.xs]
        self._slope = _upper_slope(self.xs, self.ys)

    def at(self, x: float) -> float:
        xs, ys = self.xs, self.ys
        if x <= xs[0]:
            return ys[0]
        if x >= xs[-1]:
            return ys[-1] + self._slope * (x - xs[-1])
        i = bisect_right(xs, x)
        x0, y0 = xs[i - 1], ys[i - 1]
        return y0 + (ys[i] - y0) * (x - x0) / (xs[i] - x0)


class Grid:
    """z over (row, column): a curve per row."""

    __slots__ = ("_curves", "_middle", "_rows")

    def __init__(self, points: Mapping[int, Iterable[tuple[float, float]]]) -> None:
        curves = {row: Curve(points[row]) for row in points}
        self._rows = sorted(curves)
        self._curves = [curves[row] for row in self._rows]
        self._middle = max(0, min(bisect_left(self._rows, self._rows[-1] / 2), len(self._rows) - 2))

    def points(self) -> Iterator[tuple[int, float, float]]:
        """Iterate over (row, column, value) of every point."""
        for row, curve in zip(self._rows, self._curves, strict=True):
            for x, y in zip(curve.xs, curve.ys, strict=True):
                yield row, x, y

    def at(self, row: float, column: float) -> float:
        rows, curves = self._rows, self._curves
        if row <= rows[0]:
            return curves[0].at(column)
        if row >= rows[-1]:
            high = curves[-1].at(column)
            rise = high - curves[self._middle].at(column)
            return high + max(0.0, rise) * (row - rows[-1]) / max(1, rows[-1] - rows[self._middle])
        i = bisect_right(rows, row)
        low = curves[i - 1].at(column)
        if row == rows[i - 1]:
            return low
        return low + (curves[i].at(column) - low) * (row - rows[i - 1]) / (rows[i] - rows[i - 1])


class Chunks:
    """Time of a prompt's chunk over its length and the context before it.

    Lengths that were not profiled with at least as much context before them do not say how time grows with context;
    such chunks, and longer ones, are computed in equal pieces.
    """

    __slots__ = ("_all", "_grid", "_longest")

    def __init__(self, points: Mapping[int, Sequence[tuple[float, float]]]) -> None:
        self._all = Grid(points)
        told = {length: row for length, row in points.items() if max(x for x, _ in row) >= length}
        self._grid = Grid(told) if told else self._all
        self._longest = max(told or points)

    def points(self) -> Iterator[tuple[int, float, float]]:
        """Iterate over (length, context, value) of every point."""
        return self._all.points()

    def at(self, length: float, context: float) -> float:
        if length <= self._longest:
            return self._grid.at(length, context)
        pieces = ceil(length / self._longest)
        piece = length / pieces
        return sum(self._grid.at(piece, context + i * piece) for i in range(pieces))


def _upper_slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the least-squares slope over the points from half the last x on (two at least); never negative."""
    first = min(bisect_left(xs, xs[-1] / 2), len(xs) - 2)
    if first < 0:
        return 0.0
    xs, ys = xs[first:], ys[first:]
    x_mean, y_mean = fmean(xs), fmean(ys)
    rise = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return max(0.0, rise / sum((x - x_mean) ** 2 for x in xs))
