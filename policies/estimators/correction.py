"""Corrections of predictions: by what factor that which comes differs from what a formula says.

The factor is log-normal. Its classes are nested: what is known of a wider class is where a narrower one begins. What
was seen fades with every further observation of the class, and with time, which is counted in observations of any
class, so that a class that nobody has tried for long is in doubt again.
"""

from __future__ import annotations

from math import exp, sqrt
from typing import NamedTuple

FADE = 0.95
"""Decay per observation of the class: about the last twenty count."""
TURNS = 1000.0
"""Observations of any class in which what is known of one fades to 1/e."""
WEIGHT = 3.0
"""Observations that count as much as what is known of the wider class."""
MOST = 3.0
"""Greatest logarithm of a factor: what is further off counts as that."""


class Correction(NamedTuple):
    """A factor.

    log: expected logarithm.
    noise: standard deviation of the logarithms around it.
    doubt: standard deviation of `log` itself.
    """

    log: float
    noise: float
    doubt: float

    @property
    def factor(self) -> float:
        """Return the factor's median."""
        return exp(self.log)


class _Seen:
    """Decaying sums over the observations of one class: of 1, logarithms and their squares. turn: of the last one."""

    __slots__ = ("logs", "n", "squares", "turn")

    def __init__(self) -> None:
        self.n = self.logs = self.squares = 0.0
        self.turn = 0

    def kept(self, turn: int) -> float:
        """Return the share of the sums that counts at that turn."""
        return exp((self.turn - turn) / TURNS)


class Corrections:
    """Factors by class. A class is a tuple; its wider classes are its beginnings.

    noise, doubt: standard deviations of a factor's logarithm before anything is seen.
    """

    def __init__(self, noise: float = 0.5, doubt: float = 0.7, most: int = 16_384) -> None:
        self._noise, self._doubt, self._most = noise, doubt, most
        self._seen: dict[tuple[object, ...], _Seen] = {}
        self._turn = 0

    def of(self, key: tuple[object, ...]) -> Correction:
        """Return the factor of a class."""
        log, noise2, doubt2 = 0.0, self._noise**2, self._doubt**2
        for end in range(len(key) + 1):
            seen = self._seen.get(key[:end])
            if seen is None:
                continue
            n = seen.n * seen.kept(self._turn)
            mean = seen.logs / seen.n
            spread2 = max(0.0, seen.squares / seen.n - mean * mean)
            share = n / (n + WEIGHT)
            noise2 += share * (spread2 + 1e-4 - noise2)
            log += share * (mean - log)
            doubt2 = (1.0 - share) * doubt2 + share * share * noise2 / n
        return Correction(log, sqrt(noise2), sqrt(doubt2))

    def note(self, key: tuple[object, ...], log: float, weight: float = 1.0) -> None:
        """Record the logarithm of what came over what the formula said. weight: of the observation, at most 1."""
        log = min(MOST, max(-MOST, log))
        self._turn += 1
        for end in range(len(key) + 1):
            seen = self._seen.pop(key[:end], None) or _Seen()
            self._seen[key[:end]] = seen  # the latest is last
            fade = (1.0 - weight * (1.0 - FADE)) * seen.kept(self._turn)
            seen.n = seen.n * fade + weight
            seen.logs = seen.logs * fade + weight * log
            seen.squares = seen.squares * fade + weight * log * log
            seen.turn = self._turn
        while len(self._seen) > self._most:
            del self._seen[next(iter(self._seen))]
