"""Coverage: how wide intervals have to be for four of five to hold, whatever the distribution (adaptive conformal
inference, Gibbs and Candès 2021)."""

from __future__ import annotations

from math import exp

COVERED = 0.8
"""Share of intervals that are to hold."""
STEP, FIRST_STEP = 0.06, 0.3
"""Step of the width's logarithm, in the long run and at first, as a share of what a miss adds."""
NARROWEST, WIDEST = 0.05, 8.0
"""Bounds of the factor."""


class Coverage:
    """Factor on the width of a kind of intervals, wider after each that did not hold.

    width: the factor.
    seen: intervals that are known to have held or not.
    """

    __slots__ = ("seen", "width")

    def __init__(self) -> None:
        self.width, self.seen = 1.0, 0

    def note(self, held: bool) -> None:
        """Record whether an interval of this width has held."""
        self.seen += 1
        step = max(STEP, FIRST_STEP / self.seen**0.5)
        self.width *= exp(step * (COVERED - held))
        self.width = min(WIDEST, max(NARROWEST, self.width))
