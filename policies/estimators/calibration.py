"""Calibration of a drafter: how often tokens of a given confidence are accepted.

A softmax probability says how sure the drafter is, not how often the target agrees.
"""

from __future__ import annotations

BINS = 10
FADE = 0.98  # decay of a bin per token: about the last fifty count
PRIOR = 8.0  # tokens' worth of trust in the stated confidence
ASSUMED = 0.8  # prior acceptance; too low a prior would stop drafting, and with it learning


class Calibration:
    """P(accepted | confidence), learnt in bins of confidence; bins with few samples trust the stated confidence."""

    __slots__ = ("_all", "_bins")

    def __init__(self) -> None:
        self._bins = [(0.0, 0.0)] * BINS  # decaying counts: accepted, judged
        self._all = (ASSUMED * PRIOR, PRIOR)

    def note(self, confidence: float, accepted: bool) -> None:
        """Record the verdict on a drafted token."""
        at = _bin(confidence)
        self._bins[at], self._all = _faded(self._bins[at], accepted), _faded(self._all, accepted)

    def __call__(self, confidence: float) -> float:
        """Return the probability that a token drafted with this confidence is accepted if those before it are."""
        accepted, judged = self._bins[_bin(confidence)]
        return (PRIOR * confidence + accepted) / (PRIOR + judged)

    @property
    def mean(self) -> float:
        """Probability that a token not yet drafted is accepted if those before it are."""
        accepted, judged = self._all
        return accepted / judged

    @property
    def memory(self) -> tuple[float, ...]:
        """The whole state, as numbers."""
        return tuple(count for counts in (*self._bins, self._all) for count in counts)

    @memory.setter
    def memory(self, memory: tuple[float, ...]) -> None:
        *self._bins, self._all = zip(memory[::2], memory[1::2], strict=True)


def _bin(confidence: float) -> int:
    return min(int(confidence * BINS), BINS - 1)


def _faded(counts: tuple[float, float], accepted: bool) -> tuple[float, float]:
    return counts[0] * FADE + accepted, counts[1] * FADE + 1
