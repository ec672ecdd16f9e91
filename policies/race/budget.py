"""Budget: the share of prompt tokens that the constrained endpoint may take in.

Two mechanisms keep to it. The plan is steered: it meets its budget on average if prompts and times stay as they were,
which they do not, so later requests are planned with a little more or less, depending on what was spent. And the
budget is a limit: what the endpoint may take in for a request is reserved before it begins, and settled when it is
over.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

CORRECTION = 16.0
"""Requests of mean length over which a deviation is corrected."""


@dataclass(eq=False, slots=True)
class Booking:
    """A request in the budget, in tokens.

    tokens: of its prompt.
    allowed: its share of them.
    limit: most that the constrained endpoint may take in for it; infinite if the share is 1.
    planned: planned spending; after settling, what was spent.
    reserved: planned spending and what may be spent beyond it.
    counts: whether it is among the requests over which the budget holds.
    """

    tokens: int
    allowed: float
    limit: float = 0.0
    planned: int = 0
    reserved: int = 0
    counts: bool = True


class Budget:
    """Plans what requests may spend, reserves it, and books what they spent.

    Invariant: whenever a limit is given, `reserved` ≤ `allowed`. So from the first request on, all that requests have
        spent within their limits and may yet spend is at most the sum of their shares of their prompts. Spending
        beyond a limit is made up for by later requests. A share of 1 is no limit.

    share: b in [0, 1], the share of all prompt tokens that the constrained endpoint may take in; may be set at any
        time.
    window: number of requests over which it should hold.
    correction: requests of mean length over which a deviation is corrected.
    """

    __slots__ = (
        "_allowed",
        "_correction",
        "_planned",
        "_requests",
        "_reserved",
        "_tokens",
        "_window",
        "share",
    )

    def __init__(self, share: float = 1.0, window: int = 1000, correction: float = CORRECTION) -> None:
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"a budget is a share between 0 and 1, not {share}")
        if window < 1 or not correction > 0:
            raise ValueError("window and correction must be above 0")
        self.share = share
        self._window, self._correction = window, correction
        self._requests: deque[Booking] = deque()
        self._tokens = self._planned = self._reserved = 0
        self._allowed = 0.0

    @property
    def tokens(self) -> int:
        """Prompt tokens of the requests in the window."""
        return self._tokens

    @property
    def spent(self) -> int:
        """Tokens that the constrained endpoint took in for them, or will by plan: prompts, each time they were
        prefilled, and answers that it continued."""
        return self._planned

    @property
    def reserved(self) -> int:
        """Tokens that the constrained endpoint took in for them, or may."""
        return self._reserved

    @property
    def allowed(self) -> float:
        """Tokens that the constrained endpoint may take in for all of them."""
        return self._allowed

    def next(self, share: float | None = None) -> float:
        """Return the share to plan the next request with: its own if `_savings` are left of what earlier ones were
        allowed.

        share: share that this request is allowed; None for the budget's own.
        """
        share = self.share if share is None else share
        if not 0.0 < share < 1.0 or not self._requests:
            return share
        deviation = self._allowed - self._planned - self._savings(share)
        return min(1.0, max(0.0, share + deviation / (self._correction * self._mean)))

    def book(self, tokens: int, planned: bool, share: float | None = None, beyond: int = 0) -> Booking:
        """Begin a request; return its booking, which limits what the constrained endpoint may take in for it.

        tokens: of its prompt.
        planned: whether the constrained endpoint is to take it in. If not, it may still be needed later, and the
            prompt is reserved, too, if half of the savings remain.
        share: share that the request is allowed; None for the budget's own.
        beyond: tokens that it may have to take in later, reserved with the prompt as far as there is room.
        """
        share = self.share if share is None else share
        booking = Booking(tokens, tokens * share)
        self._requests.append(booking)
        self._add(booking, 1)
        if len(self._requests) > self._window:
            oldest = self._requests.popleft()
            oldest.counts = False
            self._add(oldest, -1)
        room = self._allowed - self._reserved
        if share == 1.0:
            booking.limit = math.inf
            self._set(booking, tokens * planned, tokens)
        elif planned and tokens <= room:
            booking.limit = min(math.floor(room), tokens + beyond)
            self._set(booking, tokens, int(booking.limit))
        elif share and not planned and tokens + self._savings(share) / 2 <= room:
            booking.limit = tokens
            self._set(booking, 0, tokens)
        return booking

    def settle(self, booking: Booking, spent: int) -> None:
        """End a request for which the constrained endpoint took in `spent` tokens; the rest of its reservation is
        freed."""
        self._set(booking, spent, spent)

    @property
    def _mean(self) -> float:
        """Mean prompt length, tokens."""
        return self._tokens / len(self._requests)

    def _savings(self, share: float) -> float:
        """Return the tokens kept unspent, so that a prompt mostly finds room for its reservation."""
        return self._correction * share * (1.0 - share) * self._mean

    def _set(self, booking: Booking, planned: int, reserved: int) -> None:
        if booking.counts:
            self._planned += planned - booking.planned
            self._reserved += reserved - booking.reserved
        booking.planned, booking.reserved = planned, reserved

    def _add(self, booking: Booking, sign: int) -> None:
        self._tokens += sign * booking.tokens
        self._planned += sign * booking.planned
        self._reserved += sign * booking.reserved
        self._allowed += sign * booking.allowed
