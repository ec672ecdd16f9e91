"""Step time of an engine, learnt online: base_s + token_s · positions."""

from __future__ import annotations

from typing import NamedTuple

FADE = 0.99  # decay per step: about the last hundred count
SMALL_RATE = 0.1
"""Weight of a new step among those of its size."""
_LEAST_S = 1e-6


class StepTimes(NamedTuple):
    """State of a StepTimeModel, to send to another process.

    seen: steps, forgotten ones included.
    base_s, token_s: fitted line.
    n, t, s, tt, ts: decaying sums over steps of 1, positions, seconds, positions², and positions · seconds.
    """

    seen: int
    base_s: float
    token_s: float
    n: float
    t: float
    s: float
    tt: float
    ts: float


class SmallSteps:
    """Measured times of steps of few positions, which are on no line: a kernel takes some numbers of rows better than
    others."""

    MOST = 64

    def __init__(self, line: StepTimeModel) -> None:
        """line: model of all steps, by which sizes that were not seen are reckoned from those that were."""
        self._line = line
        self._seen: dict[int, float] = {}

    def note(self, tokens: int, seconds: float) -> None:
        """Record a step of `tokens` positions that took `seconds`."""
        if tokens <= self.MOST:
            seconds = max(seconds, _LEAST_S)
            before = self._seen.get(tokens, seconds)
            self._seen[tokens] = before + SMALL_RATE * (seconds - before)

    def step_s(self, tokens: int) -> float:
        """Return the expected seconds of a step of `tokens` positions."""
        if (known := self._seen.get(tokens)) is not None:
            return known
        below = max((seen for seen in self._seen if seen < tokens), default=None)
        above = min((seen for seen in self._seen if seen > tokens), default=None)
        if below is None:
            return self._line.step_s(tokens)
        if above is None:
            return self._seen[below] + (tokens - below) * self._line.token_s
        share = (tokens - below) / (above - below)
        return self._seen[below] + share * (self._seen[above] - self._seen[below])


class StepTimeModel:
    """Weighted least squares over recent steps, in constant time and memory.

    If all steps had about the same size, the ratio of the two terms is unknown and stays as it was.

    base_s: seconds that each step takes at least.
    token_s: seconds that each of its positions adds.
    seen: steps, forgotten ones included.
    """

    __slots__ = ("_n", "_s", "_t", "_ts", "_tt", "base_s", "seen", "token_s")

    def __init__(self, base_s: float = 5e-3, token_s: float = 1e-4) -> None:
        self.base_s, self.token_s = base_s, token_s
        self._n = self._t = self._s = self._tt = self._ts = 0.0
        self.seen = 0

    def note(self, tokens: int, seconds: float) -> None:
        """Record a step of `tokens` positions that took `seconds`."""
        self.seen += 1
        self._n = self._n * FADE + 1
        self._t = self._t * FADE + tokens
        self._s = self._s * FADE + seconds
        self._tt = self._tt * FADE + tokens * tokens
        self._ts = self._ts * FADE + tokens * seconds
        spread = self._tt * self._n - self._t * self._t
        if spread > 0.01 * self._t * self._t:  # step sizes differed by a tenth or more
            token_s = (self._ts * self._n - self._t * self._s) / spread
            if token_s > 0:
                self.token_s = token_s
        mean_s, mean_tokens = self._s / self._n, self._t / self._n
        self.token_s = min(max(self.token_s, _LEAST_S), mean_s / mean_tokens)
        self.base_s = max(mean_s - self.token_s * mean_tokens, _LEAST_S)

    def step_s(self, tokens: float) -> float:
        """Return the expected seconds of a step of `tokens` positions."""
        return self.base_s + self.token_s * tokens

    def snapshot(self) -> StepTimes:
        """Return the complete state, for another process."""
        return StepTimes(self.seen, self.base_s, self.token_s, self._n, self._t, self._s, self._tt, self._ts)

    def adopt(self, other: StepTimes) -> None:
        """Take over another model's state if it has seen more steps."""
        if other.seen > self.seen:
            self.seen, self.base_s, self.token_s, self._n, self._t, self._s, self._tt, self._ts = other
