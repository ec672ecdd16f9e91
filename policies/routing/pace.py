"""Pace of an answer: whether its tokens come later than was expected, so that another way to go on may be better."""

from __future__ import annotations

from tandem.policies.routing.objectives import Estimate

LOOK_S = 1.0
"""Least seconds between two looks at an answer."""
MOST_S = 16.0
"""Longest time between two looks at an answer that is late and stays as it is."""
FEWEST = 8
"""Fewest tokens whose times say something."""
LATE = 1.25
"""Least ratio to the expected seconds per token that counts as late."""


class Pace:
    """Pace of one answer's tokens, in constant time per delivery.

    expected: seconds per token that were forecast.
    rate: tokens/s of its reader; 0 without one.
    """

    __slots__ = ("_gap", "_last_s", "_late_s", "_pause_s", "_since_s", "_tokens")

    def __init__(self, expected: Estimate, rate: float) -> None:
        self._late_s = max(expected.interval[1], LATE * expected.value, 1.0 / rate if rate else 0.0)
        self._pause_s, self._last_s, self._tokens = LOOK_S, -1.0, 0
        self._since_s = 0.0
        self._gap = 0.0, 0  # the longest since then, seconds, and the tokens that came after it

    def delivered(self, tokens: int, ahead_s: float, now_s: float) -> float:
        """Record that tokens have come; return the seconds per token lately if it is time to look for another way to
        go on, 0 otherwise: they take longer than the forecast's interval and the reader allow. ahead_s: for which the
        reader has unread tokens; 0 without a reader."""
        last_s, self._last_s = self._last_s, now_s
        if last_s < 0.0:  # the first ones
            self._since_s = now_s
            return 0.0
        self._tokens += tokens
        self._gap = max(self._gap, (now_s - last_s, tokens))
        if now_s - self._since_s < self._pause_s or self._tokens - self._gap[1] < FEWEST:
            return 0.0
        gap_s, after = self._gap  # a wait that is over says nothing of those to come
        tpot_s = (now_s - self._since_s - gap_s) / (self._tokens - after)
        self._since_s, self._tokens, self._gap = now_s, 0, (0.0, 0)
        if tpot_s <= self._late_s or ahead_s > LOOK_S:
            self._pause_s = LOOK_S
            return 0.0
        self._pause_s = min(MOST_S, 2.0 * self._pause_s)
        return tpot_s
