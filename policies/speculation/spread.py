"""Spread of acceptance: by how much recent rounds tell more of the next one than the long average does.

Where all drafts are alike, what a pair's recent rounds differ by from the average is chance; where pairs, answers or
texts differ, or acceptance drifts, the next round differs the same way. The covariance of a round with those before it
is the variance of acceptance itself, without that of chance (method of moments). Among many answers that share a pair
it is small, as a round and those before it are of different ones; so their average counts for more.
"""

from __future__ import annotations

FIRST_WEIGHT = 12.0
"""Judged tokens that the average counts as, until rounds show their spread."""
FIRST = 4_000.0
"""Products of judged tokens, of a round and of those before it, that count as FIRST_WEIGHT."""
MEMORY = 400_000.0
"""Products over which it is averaged: of about two thousand rounds."""
LEAST, MOST = 4.0, 1000.0


class Spread:
    """Covariance of acceptance between a round and those before it.

    state: products seen, and the sum of their covariances.
    """

    __slots__ = ("_covariance", "_seen")

    def __init__(self) -> None:
        self._seen = self._covariance = 0.0

    def note(self, accepted: float, judged: float, before: tuple[float, float], mean: float) -> None:
        """Record a round. before: accepted and judged tokens of the pair's recent ones; mean: acceptance on average."""
        together = judged * before[1]
        if not together:
            return
        keep = min(1.0, MEMORY / (self._seen + together))
        product = (accepted - judged * mean) * (before[0] - before[1] * mean)
        self._seen = keep * (self._seen + together)
        self._covariance = keep * (self._covariance + product)

    def weight(self, mean: float) -> float:
        """Return the judged tokens that the average counts as, beside a pair's own recent ones."""
        chance = mean * (1.0 - mean)
        if not chance:
            return FIRST_WEIGHT
        covariance = self._covariance + FIRST * chance / FIRST_WEIGHT
        return min(MOST, max(LEAST, chance * (self._seen + FIRST) / max(covariance, 1e-9)))

    @property
    def state(self) -> tuple[float, float]:
        return self._seen, self._covariance

    @state.setter
    def state(self, state: tuple[float, float]) -> None:
        self._seen, self._covariance = state
