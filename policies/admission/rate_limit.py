"""How much somebody may have in a minute: a token bucket. It has no clock: seconds are of any one clock."""

from __future__ import annotations


class RateLimit:
    """So much flows in every minute, and at most so much may have gathered."""

    __slots__ = ("_left", "_per_s", "_since_s", "limit")

    def __init__(self, per_minute: float) -> None:
        self.limit = per_minute
        self._per_s = per_minute / 60.0
        self._left = per_minute
        self._since_s = float("-inf")  # when `_left` was reckoned

    def left(self, now_s: float) -> float:
        """What may be taken now; below 0: what was taken in advance."""
        if self._left < self.limit:
            self._left = min(self.limit, self._left + (now_s - self._since_s) * self._per_s)
        self._since_s = now_s
        return self._left

    def take(self, amount: float, now_s: float) -> None:
        """It is taken, whether or not it is there."""
        self._left = self.left(now_s) - amount

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until so much may be taken, or the whole limit where that is less; 0: now."""
        return max(0.0, min(amount, self.limit) - self.left(now_s)) / self._per_s

    def full_s(self, now_s: float) -> float:
        """Seconds until all of it may be taken."""
        return self.wait_s(self.limit, now_s)
