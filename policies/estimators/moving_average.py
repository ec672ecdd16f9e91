"""Exponential moving averages, as HAT's state monitoring takes them (HAT, section 3.2)."""

from __future__ import annotations

A = 0.8
"""HAT's α: the weight of everything before."""


def moved(average: float, sample: float, a: float = A) -> float:
    """a · average + (1 − a) · sample."""
    return a * average + (1 - a) * sample


class MovingAverage:
    """Of samples. The first sample replaces what was only assumed.

    value: the average; before the first sample what was assumed.
    seen: whether there was a sample.
    """

    __slots__ = ("seen", "value")

    def __init__(self, assumed: float = 0.0) -> None:
        self.value = assumed
        self.seen = False

    def note(self, sample: float) -> None:
        """Another sample."""
        self.value = moved(self.value, sample) if self.seen else sample
        self.seen = True

    @property
    def memory(self) -> tuple[float, float]:
        """All that it knows."""
        return self.value, float(self.seen)

    @memory.setter
    def memory(self, memory: tuple[float, float]) -> None:
        self.value, self.seen = memory[0], bool(memory[1])
