"""A budget over time: the share of prompt tokens that the constrained endpoint has processed stays what was set.

A plan meets its budget in expectation, if prompts and times stay as they were. They do not, so what was really
spent is booked, and the next requests are planned with a little more or less.
"""

from __future__ import annotations

from collections import deque

CORRECTION = 16.0
"""Requests of mean length over which a deviation is made up. Nothing is planned to be spent where as much was overspent
as so many requests are allowed."""


class Booking:
    """One request in the books, in tokens.

    tokens: its prompt.
    spent: what the constrained endpoint has taken in for it, or is expected to.
    allowed: what it was allowed to.
    counts: it is among the requests over which the budget shall hold.
    """

    __slots__ = ("allowed", "counts", "spent", "tokens")

    def __init__(self, tokens: int, spent: float, allowed: float) -> None:
        self.tokens, self.spent, self.allowed = tokens, spent, allowed
        self.counts = True


class Budget:
    """Plans what requests may spend and books what they did.

    What is planned is booked at once, as it is expected to turn out: otherwise all requests of a burst would make up
    for the same deviation.

    share: b in [0, 1], the part of all prompt tokens that the constrained endpoint may take in; may be set at any time.
    window: requests over which it shall hold.
    correction: requests of mean length over which a deviation is made up.
    """

    __slots__ = ("_allowed", "_correction", "_requests", "_spent", "_tokens", "_window", "share")

    def __init__(self, share: float = 1.0, window: int = 1000, correction: float = CORRECTION) -> None:
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
        """Prompt tokens of the requests in the window."""
        return self._tokens

    @property
    def spent(self) -> float:
        """Tokens that the constrained endpoint took in for them: a prompt as often as it did, and answers that it
        went on with."""
        return self._spent

    def next(self, share: float | None = None) -> float:
        """The share to plan the next request with.

        share: what that request is allowed; None: the budget's own share.
        """
        share = self.share if share is None else share
        if not 0.0 < share < 1.0 or not self._requests:
            return share
        left = self._allowed - self._spent  # tokens; below 0: too many were spent
        mean = self._tokens / len(self._requests)
        return min(1.0, max(0.0, share + left / (self._correction * mean)))

    def book(self, tokens: int, expected: float, share: float | None = None) -> Booking:
        """A request begins.

        tokens: its prompt.
        expected: how likely the constrained endpoint takes it in.
        share: what the request is allowed; None: the budget's own share.
        """
        booking = Booking(tokens, tokens * expected, tokens * (self.share if share is None else share))
        self._requests.append(booking)
        self._add(booking, 1)
        if len(self._requests) > self._window:
            oldest = self._requests.popleft()
            oldest.counts = False
            self._add(oldest, -1)
        return booking

    def resolve(self, booking: Booking, spent: float) -> None:
        """So many tokens the constrained endpoint has taken in for the request so far; replaces what was booked."""
        if booking.counts:
            self._spent += spent - booking.spent
        booking.spent = spent

    def _add(self, booking: Booking, sign: int) -> None:
        self._tokens += sign * booking.tokens
        self._spent += sign * booking.spent
        self._allowed += sign * booking.allowed
