"""A budget over time: the share of prompt tokens that the constrained endpoint has processed stays what was set.

A plan meets its budget in expectation, if prompts and times stay as they were. They do not, so what was really
spent is booked, and the next plans are made for a little more or less.
"""

from __future__ import annotations

from collections import deque


class Booking:
    """A request's tokens, those of them that the constrained endpoint takes in, and those that it was allowed."""

    __slots__ = ("allowed", "counts", "spent", "tokens")

    def __init__(self, tokens: int, spent: float, allowed: float) -> None:
        self.tokens, self.spent, self.allowed = tokens, spent, allowed
        self.counts = True


class Budget:
    """share: b in [0, 1], which may be set anew at any time. window: requests over which it shall hold.

    correction: requests, of the window's mean length, over which a deviation is made up. What is planned is booked at
    once, as it is expected: else all requests of a burst would make up for the same deviation.
    """

    __slots__ = ("_allowed", "_correction", "_requests", "_spent", "_tokens", "_window", "share")

    def __init__(self, share: float = 1.0, window: int = 1000, correction: float = 16.0) -> None:
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"a budget is a share between 0 and 1, not {share}")
        if window < 1 or not correction > 0:
            raise ValueError("window and correction must be above 0")
        self.share = share
        self._window, self._correction = window, correction
        self._requests: deque[Booking] = deque()
        self._tokens = 0
        self._spent = self._allowed = 0.0

    @property
    def tokens(self) -> int:
        """Prompt tokens in the window."""
        return self._tokens

    @property
    def spent(self) -> float:
        """Those of them that the constrained endpoint processed."""
        return self._spent

    @property
    def used(self) -> float:
        """The share of those; 0 before any came."""
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

    def book(self, tokens: int, expected: float, share: float | None = None) -> Booking:
        """A request of so many prompt tokens begins. expected: how likely the constrained endpoint takes them in."""
        booking = Booking(tokens, tokens * expected, tokens * (self.share if share is None else share))
        self._requests.append(booking)
        self._add(booking, 1)
        if len(self._requests) > self._window:
            oldest = self._requests.popleft()
            oldest.counts = False
            self._add(oldest, -1)
        return booking

    def settle(self, booking: Booking, spent: bool) -> None:
        """Whether the constrained endpoint took the request's tokens in."""
        difference = booking.tokens * spent - booking.spent
        booking.spent += difference
        if booking.counts:
            self._spent += difference

    def _add(self, booking: Booking, sign: int) -> None:
        self._tokens += sign * booking.tokens
        self._spent += sign * booking.spent
        self._allowed += sign * booking.allowed
