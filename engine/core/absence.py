"""Absence: the time between two tasks of a session, in which its client drafts, reads or thinks.

A client that has come back soon so far, as between two rounds of speculation, is expected soon again.
"""

from __future__ import annotations

from tandem.policies.estimators.moving_average import MovingAverage

PATIENCE = 2.0
"""Factor on the mean absence up to which a session is expected back."""
FIRST_S = 0.1
"""Assumed absence of a client that has not been away before."""
LONGEST_S = 1.0
"""Longest time for which one is; a place is worth more to others for longer."""


class Absence:
    """Absences of one session's client; times are on the engine's clock."""

    __slots__ = ("_mean_s", "_since_s")

    def __init__(self) -> None:
        self._mean_s = MovingAverage(FIRST_S)
        self._since_s: float | None = None

    def begin(self, now_s: float) -> None:
        """Note that a task of the session has ended."""
        self._since_s = now_s

    def end(self, now_s: float) -> None:
        """Note that its next task has come."""
        if self._since_s is not None:
            self._mean_s.note(now_s - self._since_s)
        self._since_s = None

    def left_s(self, now_s: float) -> float:
        """Return the seconds for which the client is still expected; 0 if it is not, or is there."""
        if self._since_s is None:
            return 0.0
        return max(0.0, self._since_s + min(PATIENCE * self._mean_s.value, LONGEST_S) - now_s)
