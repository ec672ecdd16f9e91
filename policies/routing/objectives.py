"""Objectives: what an answer's times, cost, quality and privacy are worth, in dollars, and the choice by them.

Every way to answer a request has a prediction. Its loss is what it costs, what the seconds are worth that its reader
waits, and others because of it, and what is worth the quality that it lacks. Hard limits rule ways out before losses
are compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

Z80 = 1.2815515655446004
"""Standard deviations on either side of a normal distribution's mean that hold 80 % of it."""


MOST_NOISE = 1.5
"""Greatest noise that counts in a mean: of so uncertain a figure the tail is not known."""


class Leaves(IntEnum):
    """Most telling part of a request that leaves the user's device."""

    NOTHING = 0
    HIDDEN_STATES = 1
    TEXT = 2


class Estimate(NamedTuple):
    """An expected value; its logarithm is normally distributed.

    value: median.
    noise: standard deviation of the logarithm of what comes, if the median is right.
    doubt: standard deviation of the median's own logarithm, of which little may be known.
    width: factor on the interval's logarithm, as the distribution is not quite a normal one.
    """

    value: float
    noise: float = 0.0
    doubt: float = 0.0
    width: float = 1.0

    @property
    def interval(self) -> tuple[float, float]:
        """Return the bounds between which what comes lies with a probability of 80 %."""
        factor = math.exp(Z80 * self.width * math.hypot(self.noise, self.doubt))
        return self.value / factor, self.value * factor

    def times(self, factor: float) -> Estimate:
        """Return the estimate of a multiple."""
        return self._replace(value=self.value * factor)

    def sampled(self, deviations: float) -> float:
        """Return the median if it lies `deviations` of its doubt above the expected one."""
        return self.value * math.exp(deviations * self.doubt)


NOTHING = Estimate(0.0)


class Prediction(NamedTuple):
    """Expectation of one way to answer a request.

    ttft_s: seconds to the first token.
    tpot_s: seconds per token after it.
    usd: dollars, of the server's tokens and the device's joules.
    joules: that the device spends.
    lost: quality that the answer lacks beside the target's own, in [0, 1].
    leaves: most telling part of the request that leaves the device.
    tokens: expected tokens of the answer.
    rate: tokens/s of its reader; 0 without one.
    others_s: seconds that other readers wait because of it.
    informs: standard deviation of a small model's lost quality about which the answer tells; 0: it tells of none.
    assumed: whether times are assumed, as nothing of the kind has been measured.
    uneven_s: seconds that its reader waits as tokens come unevenly, beside what the mean time per token takes.
    """

    ttft_s: Estimate
    tpot_s: Estimate
    usd: Estimate = NOTHING
    joules: Estimate = NOTHING
    lost: Estimate = NOTHING
    leaves: Leaves = Leaves.TEXT
    tokens: float = 0.0
    rate: float = 0.0
    others_s: float = 0.0
    informs: float = 0.0
    assumed: bool = False
    uneven_s: float = 0.0

    @property
    def quality(self) -> float:
        """Return the expected quality, in [0, 1]; 1 is the target's own."""
        return 1.0 - self.lost.value

    @property
    def stall_s(self) -> Estimate:
        """Return the seconds that a reader waits after the first token; without one, those until the last token."""
        return self.tpot_s._replace(value=self.wait_s(self.tpot_s.value))

    def wait_s(self, tpot_s: float) -> float:
        """Return the seconds that are waited after the first token, at that time per token."""
        if not self.rate:
            return tpot_s * max(0.0, self.tokens - 1.0)
        return max(0.0, tpot_s - 1.0 / self.rate) * max(0.0, self.tokens - 1.0) + self.uneven_s


@dataclass(frozen=True, slots=True)
class Objective:
    """Worth of what counts for a request, in dollars, and limits that no way to answer it may exceed.

    second_usd: worth of a second that its reader waits, until the first token or later; without a reader, of each
        second until the last token.
    quality_usd: worth of the whole quality of an answer.
    text_usd: worth of the text not leaving the device.
    ttft_s, usd: greatest expected values.
    min_quality: least expected quality.
    privacy: most that may leave the device.
    """

    second_usd: float = 5e-4
    quality_usd: float = 2e-3
    text_usd: float = 0.0
    ttft_s: float = math.inf
    usd: float = math.inf
    min_quality: float = 0.0
    privacy: Leaves = Leaves.TEXT

    @property
    def limited(self) -> bool:
        """Whether there is a limit that may rule out every way."""
        return self.privacy < Leaves.TEXT or self.usd < math.inf or self.min_quality > 0.0

    def within(self, other: Objective) -> Objective:
        """Return the same worths with the stricter of each two limits."""
        return replace(
            self,
            ttft_s=min(self.ttft_s, other.ttft_s),
            usd=min(self.usd, other.usd),
            min_quality=max(self.min_quality, other.min_quality),
            privacy=min(self.privacy, other.privacy),
        )

    def allows(self, expected: Prediction) -> bool:
        """Return whether no limit is exceeded."""
        return (
            expected.leaves <= self.privacy
            and expected.ttft_s.value <= self.ttft_s
            and expected.usd.value <= self.usd
            and expected.quality >= self.min_quality
        )

    def limited_loss(self, expected: Prediction) -> float:
        """Return the expected loss, dollars; infinite where a limit is exceeded."""
        return self.loss(expected) if self.allows(expected) else math.inf

    def loss(self, expected: Prediction, deviations: float = 0.0) -> float:
        """Return the expected loss, dollars. deviations: of all that is in doubt, as `Estimate.sampled` has it."""
        ttft, tpot, usd, lost = expected.ttft_s, expected.tpot_s, expected.usd.value, expected.lost.value
        ttft_s, tpot_s = ttft.value, tpot.value
        if deviations:
            ttft_s, tpot_s = ttft.sampled(deviations), tpot.sampled(deviations)
            usd, lost = expected.usd.sampled(deviations), expected.lost.sampled(deviations)
        waited_s = ttft_s * _mean_factor(ttft.noise) + expected.wait_s(tpot_s * _mean_factor(tpot.noise))
        text_usd = self.text_usd if expected.leaves is Leaves.TEXT else 0.0
        return (
            usd
            + self.second_usd * (waited_s + expected.others_s)
            + self.quality_usd * min(1.0, lost)
            + text_usd
        )


OBJECTIVES = {
    "balanced": Objective(),
    "fast": Objective(second_usd=5e-3),
    "cheap": Objective(second_usd=5e-5, quality_usd=5e-4),
    "private": Objective(privacy=Leaves.HIDDEN_STATES),
}
"""Objectives, by the names that settings and requests use."""


class Candidate(NamedTuple):
    """A way to answer a request: a mode, the device that takes part, if one does, and what is expected of it."""

    mode: str
    device: str | None
    expected: Prediction


class Ranking(NamedTuple):
    """Ways that an objective allows.

    best: index of the one with the least expected loss.
    losses: expected, by index; infinite where a limit is exceeded.
    """

    best: int
    losses: list[float]

    @property
    def second(self) -> int | None:
        """Return the index of the next best; None if there is none."""
        others = [i for i, loss in enumerate(self.losses) if i != self.best and loss < math.inf]
        return min(others, key=self.losses.__getitem__, default=None)


def ranked(losses: list[float]) -> Ranking | None:
    """Return ways by their expected losses; None if no way is allowed."""
    best = min(range(len(losses)), key=losses.__getitem__, default=None)
    return None if best is None or losses[best] == math.inf else Ranking(best, losses)


def _mean_factor(noise: float) -> float:
    """Return a log-normal distribution's mean as a multiple of its median."""
    return math.exp(min(noise, MOST_NOISE) ** 2 / 2) if noise else 1.0
