"""A budget over time: the share of prompt tokens that the constrained endpoint has processed stays what was set.

A plan meets its budget in expectation, if prompts and times stay as they were. They do not, so what was really
spent is booked, and the next plans are made for a little more or less.
"""

from __future__ import annotations

from collections import deque


class Budget:
    """share: b in [0, 1], which may be set anew at any time. window: requests over which it shall hold.

    correction: requests, of the window's mean length, over which a deviation is made up.
    """

    __slots__ = ("_allowed", "_correction", "_requests", "_spent", "_tokens", "_window", "share")

    def __init__(self, share: float = 1.0, window: int = 1000, correction: float = 8.0) -> None:
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"a budget is a share between 0 and 1, not {share}")
        if window < 1 or not correction > 0:
            raise ValueError("window and correction must be above 0")
        self.share = share
        self._window, self._correction = window, correction
        self._requests: deque[tuple[int, int, float]] = deque()
        self._tokens = self._spent = 0
        self._allowed = 0.0

    @property
    def used(self) -> float:
        """Share of the window's prompt tokens that the constrained endpoint processed; 0 before any came."""
        return self._spent / self._tokens if self._tokens else 0.0

    @property
    def requests(self) -> int:
        """In the window."""
        return len(self._requests)

    def next(self, share: float | None = None) -> float:
        """The share to plan the next request with. share: what that request is allowed, where it is not `share`."""
        share = self.share if share is None else share
        if not 0.0 < share < 1.0 or not self._requests:
            return share
        left = self._allowed - self._spent  # tokens; below 0: too many were spent
        mean = self._tokens / len(self._requests)
        return min(1.0, max(0.0, share + left / (self._correction * mean)))

    def note(self, tokens: int, spent: bool, share: float | None = None) -> None:
        """A request of so many prompt tokens, and whether the constrained endpoint took them in."""
        allowed = tokens * (self.share if share is None else share)
        request = (tokens, tokens if spent else 0, allowed)
        self._requests.append(request)
        self._add(request, 1)
        if len(self._requests) > self._window:
            self._add(self._requests.popleft(), -1)

    def _add(self, request: tuple[int, int, float], sign: int) -> None:
        tokens, spent, allowed = request
        self._tokens += sign * tokens
        self._spent += sign * spent
        self._allowed += sign * allowed
