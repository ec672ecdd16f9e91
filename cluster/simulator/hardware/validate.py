"""How far the interpolation is off on rows it has not seen: every third row of each public table is held out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from cluster.simulator.hardware import tables
from cluster.simulator.hardware.catalog import ATTENTION_PROFILES, VIDUR_DENSE_PROFILES, attention_grids
from cluster.simulator.hardware.interpolate import Curve, Grid


class HeldOut(NamedTuple):
    """Mean absolute relative error over the held-out rows of one table."""

    table: str
    operation: str  # "prefill" or "decode"
    error: float
    rows: int


def held_out(data: Path) -> Iterator[HeldOut]:
    """All tables. Dense operators count to prefill above 64 tokens, to decoding below."""
    for profile in VIDUR_DENSE_PROFILES:
        if (data / profile.file).exists():
            seen = tables.vidur_dense(data / profile.file, profile.ways, _seen)
            unseen = tables.vidur_dense(data / profile.file, profile.ways, _unseen)
            name = f"{profile.file} TP{profile.ways}"
            yield from _curve(name, seen, unseen)
    for profile in ATTENTION_PROFILES:
        path = data / profile.file
        for operation, seen_grid, unseen_grid in zip(
            ("decode", "prefill"), attention_grids(path, _seen), attention_grids(path, _unseen), strict=True
        ):
            yield _grid(profile.file, operation, seen_grid, unseen_grid)


def _seen(row: int) -> bool:
    return row % 3 != 0


def _unseen(row: int) -> bool:
    return row % 3 == 0


def _curve(name: str, seen: Curve, unseen: Curve) -> Iterator[HeldOut]:
    for operation, low, high in (("decode", 1, 64), ("prefill", 65, 1 << 20)):
        errors = [
            abs(seen.at(x) / y - 1)
            for x, y in zip(unseen.xs, unseen.ys, strict=True)
            if low <= x <= high and x not in seen.xs
        ]
        if errors:
            yield HeldOut(name, operation, mean(errors), len(errors))


def _grid(name: str, operation: str, seen: Grid, unseen: Grid) -> HeldOut:
    errors = [abs(seen.at(row, x) / y - 1) for row, x, y in unseen.points()]
    return HeldOut(name, operation, mean(errors), len(errors))
