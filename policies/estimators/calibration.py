"""Calibration: how often tokens are accepted that a drafter was so sure of.

Its softmax says how sure it is of itself, which is not how often the model agrees.
"""

from __future__ import annotations

BINS = 10
FADE = 0.98  # weight of what a bin has seen before, a token; fifty are remembered
PRIOR = 8.0  # tokens that a confidence, taken at its word, counts for
ASSUMED = (
    0.8  # acceptance before anything was judged: who expects too little never drafts, and never learns better
)


class Calibration:
    """P(accepted | confidence), learnt in bins of confidence; a bin that has seen little takes it at its word."""

    __slots__ = ("_all", "_bins")

    def __init__(self) -> None:
        self._bins = [(0.0, 0.0)] * BINS  # fading counts: accepted, judged
        self._all = (ASSUMED * PRIOR, PRIOR)

    def note(self, confidence: float, accepted: bool) -> None:
        """A drafted token was judged."""
        at = _bin(confidence)
        self._bins[at], self._all = _faded(self._bins[at], accepted), _faded(self._all, accepted)

    def __call__(self, confidence: float) -> float:
        """Probability that a token drafted with this confidence is accepted, if those before it are."""
        accepted, judged = self._bins[_bin(confidence)]
        return (PRIOR * confidence + accepted) / (PRIOR + judged)

    @property
    def mean(self) -> float:
        """The same of a token that is not drafted yet."""
        accepted, judged = self._all
        return accepted / judged

    @property
    def memory(self) -> tuple[float, ...]:
        """All that it knows."""
        return tuple(count for counts in (*self._bins, self._all) for count in counts)

    @memory.setter
    def memory(self, memory: tuple[float, ...]) -> None:
        *self._bins, self._all = zip(memory[::2], memory[1::2], strict=True)


def _bin(confidence: float) -> int:
    return min(int(confidence * BINS), BINS - 1)


def _faded(counts: tuple[float, float], accepted: bool) -> tuple[float, float]:
    return counts[0] * FADE + accepted, counts[1] * FADE + 1
