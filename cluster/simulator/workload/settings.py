"""The workload part of a simulation's YAML file."""

from __future__ import annotations

from typing import Literal

import msgspec


class Lengths(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Token counts: lognormal with this mean and coefficient of variation, between `least` and `most`."""

    mean: float
    cv: float = 0.0
    least: int = 1
    most: int = 1_000_000

    def __post_init__(self) -> None:
        if self.mean < 1 or self.cv < 0 or not 1 <= self.least <= self.most:
            raise ValueError(
                f"lengths need mean ≥ 1, cv ≥ 0 and 1 ≤ least ≤ most, not {self.mean}, {self.cv}, "
                f"{self.least}, {self.most}"
            )


class Arrival(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When requests come. poisson: rate_per_s; interval: every 1 / rate_per_s seconds; trace: as the trace
    says, `speed` times as fast; closed: `users` (null: one a device) each ask again think_s after their last
    answer."""

    kind: Literal["poisson", "interval", "trace", "closed"] = "poisson"
    rate_per_s: float = 1.0
    speed: float = 1.0
    think_s: float = 0.0
    users: int | None = None

    def __post_init__(self) -> None:
        if self.rate_per_s <= 0 or self.speed <= 0:
            raise ValueError(f"rate_per_s and speed must be above 0, not {self.rate_per_s}, {self.speed}")
        if self.think_s < 0 or (self.users is not None and self.users < 1):
            raise ValueError(
                f"think_s must be at least 0 and users at least 1, not {self.think_s}, {self.users}"
            )


class Acceptance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which drafts the target accepts. alpha: independent with this probability a token; recorded: from real
    runs (see workload.acceptance); trace: as the trace says."""

    kind: Literal["alpha", "recorded", "trace"] = "recorded"
    alpha: float = 0.8
    path: str | None = None
    family: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be between 0 and 1, not {self.alpha}")


class WorkloadSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """kind trace: lengths (and what else is asked for) from the file at `path`, repeated from its beginning
    until there are `count` requests (null: once); kind synthetic: `count` requests with lengths as given.

    readers: shares of the requests with the rates of their readers, [[share, tokens/s], …]; the shares sum to 1.
    seed: of everything that is drawn.
    """

    kind: Literal["trace", "synthetic"] = "synthetic"
    path: str | None = None
    count: int | None = None
    prompt: Lengths = Lengths(mean=73, cv=0.3)
    output: Lengths = Lengths(mean=138, cv=0.25)
    arrival: Arrival = Arrival()
    acceptance: Acceptance = Acceptance()
    readers: tuple[tuple[float, float], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ValueError(f"count must be at least 1, not {self.count}")
        if self.readers and (
            min(rate for _, rate in self.readers) <= 0
            or min(share for share, _ in self.readers) < 0
            or abs(sum(share for share, _ in self.readers) - 1) > 1e-6
        ):
            raise ValueError(f"readers need rates above 0 and shares that sum to 1, not {self.readers}")
        if self.kind == "trace" and self.path is None:
            raise ValueError('kind "trace" needs a path')
        if self.kind == "synthetic" and self.count is None:
            raise ValueError('kind "synthetic" needs a count')
        if self.kind == "synthetic" and "trace" in (self.arrival.kind, self.acceptance.kind):
            raise ValueError(
                "a synthetic workload has no trace: choose another kind of arrival or acceptance"
            )
