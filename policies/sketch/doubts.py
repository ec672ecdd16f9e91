"""Doubts: which sentences of a small model the large one says otherwise, by the probability that it gives them.

A model that writes otherwise than the large one, as ordinary models do, is unlikely all the time: of
its sentences, only the worst are doubted.
"""

from __future__ import annotations

from collections import deque

SURE = -6.0
"""Log-probability of a sentence from which on it is not doubted."""
WORST = 0.15
"""Largest share of a model's sentences that is doubted."""
KEPT = 256
"""Sentences by which a new one is judged."""
LEAST_SEEN = 16
"""Sentences of a model before it is judged by its own."""


class Doubts:
    """Doubts about one small model's sentences."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=KEPT)

    def doubts(self, log_probability: float) -> bool:
        """Return whether a sentence is doubted. log_probability: Σ ln p(w_i) by the large model."""
        self._seen.append(log_probability)
        if log_probability >= SURE:
            return False
        worse = sum(each < log_probability for each in self._seen)
        return len(self._seen) < LEAST_SEEN or worse < WORST * len(self._seen)
