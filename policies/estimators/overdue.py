"""Overdue steps: how long an engine's step may take until its engine counts as hung, by what is known of its steps."""

from __future__ import annotations

FACTOR = 8.0
"""Times as long as expected that a step may take."""
FLOOR_S = 3.0
"""Shortest limit."""
FIRST_S = 30.0
"""Limit of an engine's first step, of which nothing is known."""
HUNG_S = 15.0
"""Seconds by which a step is overdue when its engine is replaced; no requests come there meanwhile."""
FADE = 0.97
"""Decay of the longest step with each shorter one."""


class StepLimit:
    """Limit of an engine's next step."""

    __slots__ = ("_longest_s",)

    def __init__(self) -> None:
        self._longest_s: float | None = None

    def note(self, seconds: float) -> None:
        """Record how long a step took."""
        self._longest_s = seconds if self._longest_s is None else max(seconds, FADE * self._longest_s)

    def limit_s(self, expected_s: float) -> float:
        """Return the seconds after which a step is overdue. expected_s: by a model of step times."""
        if self._longest_s is None:
            return max(FIRST_S, FACTOR * expected_s)
        return max(FLOOR_S, FACTOR * max(self._longest_s, expected_s))
