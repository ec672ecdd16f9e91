"""Settings that the application and simulations share (an engine's own: `engine.config`). Nothing here needs Ray."""

from __future__ import annotations

from pathlib import Path

from pydantic import ConfigDict, Field, field_validator, model_validator

from cluster.link import LinkProfile
from deployments.request.timeouts import Limits, Timeouts
from engine.config import PolicyChoice, Strict
from policies.collaboration import collaboration
from policies.cost import MAINS_USD_PER_J
from policies.dispatch import dispatch
from policies.migration import migration
from policies.routing import routing

__all__ = ["LatencySettings", "LinkSettings", "PolicyChoice", "RacingSettings", "RouterSettings", "Strict"]

BYTES_PER_MBIT = 125_000


class LinkSettings(Strict):
    """A link between a device and the cloud, emulated or simulated.

    rtt_ms: round-trip time without load, milliseconds.
    jitter_ms: by how much a one-way delay varies either way, milliseconds; at most half the round-trip time.
    up_mbit_per_s, down_mbit_per_s: bandwidth from and to the device, megabits/s; null for no limit.
    rtt_trace: a round-trip time that changes, as [[seconds, rtt_ms], …] from second 0 on, in place of rtt_ms.
    """

    rtt_ms: float = Field(0.0, ge=0)
    jitter_ms: float = Field(0.0, ge=0)
    up_mbit_per_s: float | None = Field(None, gt=0)
    down_mbit_per_s: float | None = Field(None, gt=0)
    rtt_trace: tuple[tuple[float, float], ...] = ()

    @model_validator(mode="after")
    def _possible(self) -> LinkSettings:
        least_ms = min((rtt_ms for _, rtt_ms in self.rtt_trace), default=self.rtt_ms)
        if self.jitter_ms > least_ms / 2:
            raise ValueError(
                f"jitter_ms may be at most half the round-trip time ({least_ms:g} ms), not {self.jitter_ms:g}"
            )
        self.profile()
        return self

    def profile(self, seed: int = 0) -> LinkProfile:
        """The same in seconds and bytes. seed: of the jitter."""
        rates = (self.up_mbit_per_s, self.down_mbit_per_s)
        up, down = (None if rate is None else rate * BYTES_PER_MBIT for rate in rates)
        return LinkProfile(
            rtt_s=self.rtt_ms / 1e3,
            jitter_s=self.jitter_ms / 1e3,
            up_bytes_per_s=up,
            down_bytes_per_s=down,
            seed=seed,
            rtt_trace=tuple((time_s, rtt_ms / 1e3) for time_s, rtt_ms in self.rtt_trace),
        )


class LatencySettings(Strict):
    """A commercial service's time to first token, a log-normal; see `cluster.delayed`.

    median_s: seconds.
    sigma: standard deviation of the logarithm.
    seed: of the draws.
    """

    median_s: float = Field(gt=0)
    sigma: float = Field(0.0, ge=0)
    seed: int = 0


_LIMITS = Limits()


class LimitSettings(Strict):
    """A request's limits, all of them finite.

    connect_s, open_s: to reach an endpoint and be admitted, before it counts as lost.
    first_s: for its first answer, prefill and queue included.
    step_s: for every later one at most, and for the first of an endpoint that the request can do without; where
        somebody else could go on it may be given up sooner, as the reader's buffer allows.
    assign_s: how long to wait for an assignment; with half an answer, for room where all are full, and for anybody who
        can go on where all are lost.
    replans: how often a request may go on elsewhere, after it has lost an endpoint, without a token in between.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    connect_s: float = Field(_LIMITS.timeouts.connect_s, gt=0)
    open_s: float = Field(_LIMITS.timeouts.open_s, gt=0)
    first_s: float = Field(_LIMITS.timeouts.first_s, gt=0)
    step_s: float = Field(_LIMITS.timeouts.step_s, gt=0)
    assign_s: float = Field(_LIMITS.assign_s, gt=0)
    replans: int = Field(_LIMITS.replans, ge=0)

    def limits(self) -> Limits:
        """As the executor takes them."""
        timeouts = Timeouts(self.connect_s, self.open_s, self.first_s, self.step_s)
        return Limits(self.replans, self.assign_s, timeouts)


class RouterSettings(Strict):
    """How a request finds its mode and its endpoints.

    collaboration: chooses mode and device.
    routing: chooses the replica.
    wait_s: how long a request waits for an endpoint that is not up.
    retry_lost_s: after so long it also takes one that has failed it before, if that is still listed.
    """

    collaboration: PolicyChoice = PolicyChoice(name="explicit")
    routing: PolicyChoice = PolicyChoice(name="jsq")
    wait_s: float = Field(45.0, ge=0)
    retry_lost_s: float = Field(3.0, ge=0)

    @model_validator(mode="after")
    def _policies_exist(self) -> RouterSettings:
        self.collaboration.create(collaboration)
        self.routing.create(routing)
        return self


class GateSettings(Strict):
    """Requests with a key, when all verifiers are full.

    queue_s: how long one waits for its turn.
    queue: how many wait at once.
    """

    queue_s: float = Field(30.0, ge=0)
    queue: int = Field(1024, ge=0)


class LedgerSettings(Strict):
    """Keys, terms and bills.

    path: of the SQLite file, on the machine where the router runs; null: in memory, and then no keys can be made.
    """

    path: Path | None = None


class RacingSettings(Strict):
    """Races between a server and a device.

    dispatch: who starts when.
    migration: who goes on.
    price_in, price_out: of the server, dollars for a million tokens.
    budget: of a new account, the share of prompt tokens for the constrained endpoint.
    exchange_rate: what a joule of a new account's devices is worth, dollars.
    """

    dispatch: PolicyChoice = PolicyChoice(name="disco")
    migration: PolicyChoice = PolicyChoice(name="buffered")
    price_in: float = Field(0.15, ge=0)
    price_out: float = Field(0.60, ge=0)
    budget: float = Field(0.5, ge=0, le=1)
    exchange_rate: float = Field(MAINS_USD_PER_J, ge=0)

    @field_validator("dispatch")
    @classmethod
    def _dispatch_exists(cls, choice: PolicyChoice) -> PolicyChoice:
        choice.create(dispatch)
        return choice

    @field_validator("migration")
    @classmethod
    def _migration_exists(cls, choice: PolicyChoice) -> PolicyChoice:
        choice.create(migration)
        return choice
