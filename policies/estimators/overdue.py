"""Overdue steps: how long an engine's step may take until its engine counts as hung, by what is known of its steps."""

from __future__ import annotations

FACTOR = 3.0
"""Times as long as expected that a step may take; see stall_timeout."""
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


class AnswerLimit:
    """Limit of the answers of an engine that is asked something now and then, and answers between two steps: as its
    steps cannot be seen, an answer that does not come tells of one that does not end."""

    __slots__ = ("_asked_s", "_limit")

    def __init__(self) -> None:
        self._limit, self._asked_s = StepLimit(), float("inf")

    def asked(self, now_s: float) -> None:
        """Record a question; there is one at a time."""
        self._asked_s = now_s

    def answered(self, now_s: float) -> None:
        """Record its answer."""
        self._limit.note(now_s - self._asked_s)
        self._asked_s = float("inf")

    def overdue_s(self, now_s: float, reads: bool, stopped: bool) -> float:
        """Return the seconds by which an answer is overdue.

        reads: whether the engine may be taking in a prompt, with which a step may take longer than all before.
        stopped: whether its process is known to be stopped, so that nothing is to be waited for.
        """
        limit_s = 0.0 if stopped else max(self._limit.limit_s(0.0), FIRST_S if reads else 0.0)
        return max(0.0, now_s - self._asked_s - limit_s)
