"""The workload part of a simulation's YAML file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tandem.deployments.modes import MODES
from tandem.engine.config import Strict

Share = tuple[float, float]
ModeShare = tuple[float, str | None]


class LengthDistribution(Strict):
    """Token counts, lognormal.

    mean: tokens.
    cv: coefficient of variation, standard deviation ÷ mean.
    least, most: bounds of what is drawn.
    """

    mean: float = Field(ge=1)
    cv: float = Field(0.0, ge=0)
    least: int = Field(1, ge=1)
    most: int = Field(1_000_000, ge=1)

    @model_validator(mode="after")
    def _in_order(self) -> LengthDistribution:
        if self.least > self.most:
            raise ValueError(f"least may not be above most, but {self.least} is above {self.most}")
        return self


class Arrival(Strict):
    """Arrival process of requests.

    kind: poisson or interval, at `rate_per_s`; trace, as the trace says; closed, each user asks again after an answer.
    rate_per_s: requests a second (poisson, interval).
    speed: how many times as fast as the trace says (trace).
    think_s: seconds from an answer's end to the user's next request (closed).
    users: how many there are, no more than devices, where there are any; null: one a device (closed).
    """

    kind: Literal["poisson", "interval", "trace", "closed"] = "poisson"
    rate_per_s: float = Field(1.0, gt=0)
    speed: float = Field(1.0, gt=0)
    think_s: float = Field(0.0, ge=0)
    users: int | None = Field(None, ge=1)


class Acceptance(Strict):
    """Acceptance of drafted tokens by the target.

    kind: alpha, independently with one probability; recorded, as in runs of real models; trace, as the trace says.
    alpha: probability that a token is accepted (alpha).
    path: recordings as `workload.acceptance` reads them; null: those that come with Tandem (recorded).
    family: only recordings of this task family; null: all (recorded).
    """

    kind: Literal["alpha", "recorded", "trace"] = "recorded"
    alpha: float = Field(0.8, ge=0, le=1)
    path: str | None = None
    family: str | None = None


class WorkloadSettings(Strict):
    """Requests of a simulation. A trace's own columns take precedence over `modes`, `readers` and `max_tokens`.

    kind: trace, requests from the file at `path`; synthetic, drawn from `prompt` and `output`.
    path: a trace, see `workload.traces`.
    count: requests; a shorter trace is repeated; null: the trace once.
    prompt, output: lengths, tokens (synthetic).
    max_tokens: what clients send as their limit, tokens; null: as much as the context leaves.
    modes: shares of the requests with the mode that they ask for, [[share, mode], …]; mode null: none asked for.
    readers: shares of the requests with their readers' rates, [[share, tokens/s], …].
    seed: of everything that is drawn.
    """

    kind: Literal["trace", "synthetic"] = "synthetic"
    path: str | None = None
    count: int | None = Field(None, ge=1)
    prompt: LengthDistribution = LengthDistribution(mean=73, cv=0.3)
    output: LengthDistribution = LengthDistribution(mean=138, cv=0.25)
    max_tokens: int | None = Field(None, ge=1)
    arrival: Arrival = Arrival()
    acceptance: Acceptance = Acceptance()
    modes: tuple[ModeShare, ...] = ()
    readers: tuple[Share, ...] = ()
    seed: int = 0

    @model_validator(mode="after")
    def _complete(self) -> WorkloadSettings:
        for key, shares in (("modes", [s for s, _ in self.modes]), ("readers", [s for s, _ in self.readers])):
            if shares and (min(shares) < 0 or abs(sum(shares) - 1) > 1e-6):
                raise ValueError(f"the shares of {key} must sum to 1, not {sum(shares):g}")
        for _, mode in self.modes:
            if mode not in (None, *MODES):
                raise ValueError(f"modes: no mode {mode!r} (allowed: {', '.join(MODES)}, null)")
        if any(rate <= 0 for _, rate in self.readers):
            raise ValueError("the rates of readers must be above 0 tokens/s")
        if self.kind == "trace" and self.path is None:
            raise ValueError('kind "trace" needs a path')
        if self.kind == "synthetic" and self.count is None:
            raise ValueError('kind "synthetic" needs a count')
        if self.kind == "synthetic" and "trace" in (self.arrival.kind, self.acceptance.kind):
            raise ValueError(
                "a synthetic workload has no trace: choose another kind of arrival or acceptance"
            )
        return self
