"""Corrections of predictions: by what factor that which comes differs from what a formula says.

The factor is log-normal. Its classes are nested: what is known of a wider class is where a narrower one begins. What
was seen fades with every further observation of the class, and with time, which is counted in observations of any
class, so that a class that was not tried for long is in doubt again.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, sqrt
from typing import NamedTuple

FADE = 0.95
"""Decay per observation of the class: about the last twenty count."""
TURNS = 1000.0
"""Observations of any class in which what is known of one fades to a half."""
WEIGHT = 3.0
"""Observations that count as much as what is known of the wider class."""
RENEWED = 16
"""Most observations after which other classes have heard of them; at first, of each of them at once."""
MOST = 3.0
"""Greatest logarithm of a factor: what is further off counts as that."""


class Correction(NamedTuple):
    """A factor.

    factor: its median.
    noise: standard deviation of the logarithms around that.
    doubt: standard deviation of the expected logarithm itself.
    """

    factor: float
    noise: float
    doubt: float


class _Seen:
    """Decaying sums over the observations of one class: of 1, logarithms and their squares. turn: of the last one."""

    __slots__ = ("logs", "n", "squares", "turn")

    def __init__(self) -> None:
        self.n = self.logs = self.squares = 0.0
        self.turn = 0

    def note(self, log: float, weight: float, turn: int) -> None:
        fade = (1.0 - weight * (1.0 - FADE)) * TURNS / (TURNS + turn - self.turn)
        self.n = self.n * fade + weight
        self.logs = self.logs * fade + weight * log
        self.squares = self.squares * fade + weight * log * log
        self.turn = turn


class Corrections:
    """Factors by class. A class is named by its wider classes, the widest first, and its own name.

    noise, doubt: standard deviations of a factor's logarithm before anything is seen.
    """

    def __init__(self, noise: float = 0.5, doubt: float = 0.7, most: int = 16_384) -> None:
        self._noise, self._doubt, self._most = noise, doubt, most
        self._seen: dict[str, _Seen] = {}
        self._all = _Seen()
        self._turn = 0
        # Found since the last observation of a widest class, by its name: what was asked for, and what that rests on.
        self._found: dict[str, dict[tuple[str, ...], Correction]] = {}
        self._wider: dict[str, dict[tuple[str, ...], tuple[float, float, float]]] = {}
        self._renewed = 0  # turn at which all were

    def of(self, names: tuple[str, ...]) -> Correction:
        """Return the factor of a class."""
        kept = self._found.get(names[0])
        if kept is None:
            kept = self._found[names[0]] = {}
        if (found := kept.get(names)) is None:
            log, noise2, doubt2 = self._known(names, self._wider.setdefault(names[0], {}))
            found = kept[names] = Correction(exp(log), sqrt(noise2), sqrt(doubt2))
        return found

    def _known(
        self, names: tuple[str, ...], kept: dict[tuple[str, ...], tuple[float, float, float]]
    ) -> tuple[float, float, float]:
        """Return the logarithm, and the variances of the noise and the doubt. kept: of the same widest class."""
        known = kept.get(names)
        if known is None:
            if names:
                seen, before = self._seen.get(names[-1]), self._known(names[:-1], kept)
            else:
                seen, before = self._all, (0.0, self._noise**2, self._doubt**2)
            known = kept[names] = before if seen is None or not seen.n else self._narrowed(before, seen)
        return known

    def _narrowed(self, wider: tuple[float, float, float], seen: _Seen) -> tuple[float, float, float]:
        log, noise2, doubt2 = wider
        n = seen.n * (TURNS / (TURNS + self._turn - seen.turn))
        mean = seen.logs / seen.n
        spread2 = max(0.0, seen.squares / seen.n - mean * mean)
        share = n / (n + WEIGHT)
        noise2 += share * (spread2 + 1e-4 - noise2)
        return log + share * (mean - log), noise2, (1.0 - share) * doubt2 + share * share * noise2 / n

    def forget(self, about: str) -> None:
        """Forget the classes whose names have that word, as what they are about is another one now."""
        for name in [name for name in self._seen if about in name.split()]:
            del self._seen[name]
        self._found.clear()
        self._wider.clear()

    def note(self, names: Sequence[str], log: float, weight: float = 1.0) -> None:
        """Record the logarithm of what came over what the formula said. weight: of the observation, at most 1."""
        log = min(MOST, max(-MOST, log))
        self._turn += 1
        if self._turn - self._renewed > min(self._turn // RENEWED, RENEWED):
            self._renewed = self._turn
            self._found.clear()
            self._wider.clear()
        else:
            self._found.pop(names[0], None)
            self._wider.pop(names[0], None)
        self._all.note(log, weight, self._turn)
        for name in names:
            seen = self._seen.pop(name) if name in self._seen else _Seen()
            self._seen[name] = seen  # the latest is last
            seen.note(log, weight, self._turn)
        while len(self._seen) > self._most:
            del self._seen[next(iter(self._seen))]
