"""A commercial service's time to first token: a log-normal, as DiSCo fits it (section 3)."""

from __future__ import annotations

import math
from random import Random

import msgspec


class LogNormal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """median_s: seconds; sigma: standard deviation of the logarithm."""

    median_s: float
    sigma: float = 0.0

    def __post_init__(self) -> None:
        if not self.median_s > 0 or not self.sigma >= 0:
            raise ValueError(
                f"median_s must be above 0 and sigma at least 0, not {self.median_s}, {self.sigma}"
            )

    def draw(self, random: Random) -> float:
        """Draw one latency, seconds."""
        return random.lognormvariate(math.log(self.median_s), self.sigma)
