"""Exponential moving averages, as in HAT's state monitoring (section 3.2)."""

from __future__ import annotations

A = 0.8
"""HAT's α: weight of all earlier samples."""


def moved(average: float, sample: float, a: float = A) -> float:
    """Return a · average + (1 − a) · sample."""
    return a * average + (1 - a) * sample


class MovingAverage:
    """Exponential moving average; the first sample replaces the assumed value.

    value: average; the assumed value before the first sample.
    seen: whether there was a sample.
    """

    __slots__ = ("seen", "value")

    def __init__(self, assumed: float = 0.0) -> None:
        self.value = assumed
        self.seen = False

    def note(self, sample: float) -> None:
        self.value = moved(self.value, sample) if self.seen else sample
        self.seen = True

    @property
    def memory(self) -> tuple[float, float]:
        """The whole state, as numbers."""
        return self.value, float(self.seen)

    @memory.setter
    def memory(self, memory: tuple[float, float]) -> None:
        self.value, self.seen = memory[0], bool(memory[1])
