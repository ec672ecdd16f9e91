"""Token bucket: a rate limit per minute. It has no clock: all times are seconds of one clock."""

from __future__ import annotations


class RateLimit:
    """Token bucket that refills at `limit` a minute and holds at most `limit`."""

    __slots__ = ("_left", "_per_s", "_since_s", "limit")

    def __init__(self, per_minute: float) -> None:
        self.limit = per_minute
        self._per_s = per_minute / 60.0
        self._left = per_minute
        self._since_s = float("-inf")  # when `_left` was computed

    def change(self, per_minute: float, now_s: float) -> None:
        """Set another limit; what was taken before still counts."""
        taken = self.limit - self.left(now_s)
        self.limit, self._per_s = per_minute, per_minute / 60.0
        self._left = per_minute - taken

    def left(self, now_s: float) -> float:
        """Return the amount that may be taken now; negative after taking in advance."""
        if self._left < self.limit:
            self._left = min(self.limit, self._left + (now_s - self._since_s) * self._per_s)
        self._since_s = now_s
        return self._left

    def take(self, amount: float, now_s: float) -> None:
        """Take an amount, even if the bucket does not hold it."""
        self._left = self.left(now_s) - amount

    def give(self, amount: float, now_s: float) -> None:
        """Give back an amount that was taken."""
        self._left = min(self.limit, self.left(now_s) + amount)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return the seconds until an amount, or the limit if that is less, may be taken; 0 if now."""
        return max(0.0, min(amount, self.limit) - self.left(now_s)) / self._per_s

    def full_s(self, now_s: float) -> float:
        """Return the seconds until the bucket is full."""
        return self.wait_s(self.limit, now_s)
