"""Intervals of a mean over seeds, by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import NamedTuple

HALF_WIDTH = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t, 95 %, by how many seeds; more are taken as ten."""


class Interval(NamedTuple):
    """A mean and half the width of its 95 % interval; that is infinite of one value."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Over seeds."""
        if len(values) < 2:
            return cls(values[0], math.inf)
        return cls(mean(values), HALF_WIDTH[min(10, len(values))] * stdev(values) / len(values) ** 0.5)

    def __str__(self) -> str:
        return f"{self.mean:+.1%}" + (f" ± {self.half:.1%}" if math.isfinite(self.half) else "")
