"""Distributions of values as Prometheus' histograms count them: how many fell between which bounds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Self

import msgspec

LATENCY_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
"""Bounds for times until something begins."""
REQUEST_S = (*LATENCY_S, 120, 300, 600)
"""Bounds for times of whole requests."""
TOKEN_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
"""Bounds for times of tokens."""
TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
"""Bounds for numbers of tokens, to 500,000."""

FEW = (0, 1, 2, 5, 10, 20, 50)
"""Bounds for small counts."""


class Distribution(msgspec.Struct, array_like=True):
    """Values that were seen.

    counts: by range, each with its upper bound: of values up to the first bound, up to the second, …, above the last.
    total: sum of the values.
    """

    counts: list[int]
    total: float = 0.0

    @classmethod
    def over(cls, bounds: Sequence[float]) -> Self:
        """Make an empty one of these bounds, which `add` needs again."""
        return cls([0] * (len(bounds) + 1))

    def add(self, value: float, bounds: Sequence[float]) -> None:
        """Count a value."""
        self.counts[bisect_left(bounds, value)] += 1
        self.total += value

    def merge(self, other: Distribution) -> None:
        """Count what another of the same bounds has counted."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def cumulative(self, bounds: Sequence[float]) -> list[tuple[str, float]]:
        """Return (bound, number of values up to it), as Prometheus' exposition has them."""
        shown, count = list[tuple[str, float]](), 0
        for bound, added in zip((*map(str, map(float, bounds)), "+Inf"), self.counts, strict=True):
            count += added
            shown.append((bound, count))
        return shown
