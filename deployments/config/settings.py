"""Settings that the application and simulations share (an engine's own: `engine.config`). Nothing here needs Ray."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from tandem.cluster.link.link import LinkProfile
from tandem.cluster.wire.tls import serving
from tandem.cluster.wire.wire import DEFAULTS as WIRE
from tandem.cluster.wire.wire import WireSettings
from tandem.deployments.access.databases.place import Place, has_password, is_address
from tandem.deployments.request.timeouts import Limits, Timeouts
from tandem.engine.config import PolicyChoice, Strict
from tandem.policies.cost import MAINS_USD_PER_J
from tandem.policies.routing.collaboration import CollaborationPolicy, collaboration
from tandem.policies.routing.replica import RoutingPolicy, routing

BYTES_PER_MBIT = 125_000


class LinkSettings(Strict):
    """A link between a device and the cloud, emulated or simulated.

    rtt_ms: round-trip time without load, milliseconds.
    jitter_ms: greatest deviation of a one-way delay, milliseconds; at most half the round-trip time.
    up_mbit_per_s, down_mbit_per_s: bandwidth from and to the device, megabits/s; null for no limit.
    rtt_trace: varying round-trip time, as [[seconds, rtt_ms], …] from second 0 on, in place of rtt_ms.
    up_trace, down_trace: varying bandwidth, as [[seconds, megabits/s], …] from second 0 on, in place of the constant.
    loss: share of frames that are lost, and sent again a round trip later.
    """

    rtt_ms: float = Field(0.0, ge=0)
    jitter_ms: float = Field(0.0, ge=0)
    up_mbit_per_s: float | None = Field(None, gt=0)
    down_mbit_per_s: float | None = Field(None, gt=0)
    rtt_trace: tuple[tuple[float, float], ...] = ()
    up_trace: tuple[tuple[float, float], ...] = ()
    down_trace: tuple[tuple[float, float], ...] = ()
    loss: float = Field(0.0, ge=0, lt=1)

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
        """Return the link's profile in seconds and bytes. seed: of jitter and losses."""
        rates = (self.up_mbit_per_s, self.down_mbit_per_s)
        up, down = (None if rate is None else rate * BYTES_PER_MBIT for rate in rates)
        return LinkProfile(
            rtt_s=self.rtt_ms / 1e3,
            jitter_s=self.jitter_ms / 1e3,
            up_bytes_per_s=up,
            down_bytes_per_s=down,
            seed=seed,
            rtt_trace=tuple((time_s, rtt_ms / 1e3) for time_s, rtt_ms in self.rtt_trace),
            up_trace=tuple((time_s, rate * BYTES_PER_MBIT) for time_s, rate in self.up_trace),
            down_trace=tuple((time_s, rate * BYTES_PER_MBIT) for time_s, rate in self.down_trace),
            loss=self.loss,
        )


class ServerTls(Strict):
    """PEM files of a server that anybody may dial.

    certificate: certificate for the name that clients dial, with those between it and its authority.
    key: its private key, without a passphrase.
    """

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return the TLS context, see `cluster.wire.tls.serving`."""
        return serving(self.certificate, self.key)


class LatencySettings(Strict):
    """A commercial service's time to first token, a log-normal; see `cluster.link.delayed_engine`.

    median_s: median of the time to first token, seconds.
    sigma: standard deviation of the logarithm.
    seed: of the random numbers.
    """

    median_s: float = Field(gt=0)
    sigma: float = Field(0.0, ge=0)
    seed: int = 0


_LIMITS = Limits()


class LimitSettings(Strict):
    """A request's limits, all of them finite.

    connect_s, open_s: timeouts to reach an endpoint and to be admitted.
    first_s: timeout of an endpoint's first answer, prefill and queue included.
    step_s: longest timeout of every later answer, and of the first one of a replaceable endpoint; shorter if another
        endpoint could continue and the reader's buffer is low.
    assign_s: timeout of an assignment; of finding an endpoint that admits a request; for a begun answer, of room, too.
    replans: most times that a request may continue elsewhere, after it has lost an endpoint that had admitted it,
        without a token in between.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    connect_s: float = Field(_LIMITS.timeouts.connect_s, gt=0)
    open_s: float = Field(_LIMITS.timeouts.open_s, gt=0)
    first_s: float = Field(_LIMITS.timeouts.first_s, gt=0)
    step_s: float = Field(_LIMITS.timeouts.step_s, gt=0)
    assign_s: float = Field(_LIMITS.assign_s, gt=0)
    replans: int = Field(_LIMITS.replans, ge=0)

    def limits(self) -> Limits:
        """Return the executor's limits."""
        timeouts = Timeouts(self.connect_s, self.open_s, self.first_s, self.step_s)
        return Limits(self.replans, self.assign_s, timeouts)

    def wire(self, silence_s: float = WIRE.silence_s, resume_s: float = WIRE.resume_s) -> WireSettings:
        """Return settings of a wire that gives up a second after the executor, so that the executor's limits hold."""
        longest_s = max(self.open_s, self.first_s, self.step_s, self.assign_s)
        return WireSettings(
            timeout_s=longest_s + 1.0, hello_s=self.connect_s + 1.0, silence_s=silence_s, resume_s=resume_s
        )


class CollaborationChoice(PolicyChoice[CollaborationPolicy]):
    """A collaboration policy."""

    family = collaboration


class RoutingChoice(PolicyChoice[RoutingPolicy]):
    """A routing policy."""

    family = routing


class RouterSettings(Strict):
    """Assignment of a mode and endpoints to requests.

    collaboration: policy that chooses mode and device.
    routing: policy that chooses the replica.
    wait_s: how long a request waits for an endpoint to come up.
    """

    collaboration: CollaborationChoice = CollaborationChoice(name="explicit")
    routing: RoutingChoice = RoutingChoice(name="jsq")
    wait_s: float = Field(45.0, ge=0)

    @property
    def compares(self) -> bool:
        """Whether the policy compares the ways to answer a request, by objectives."""
        return self.collaboration.name == "auto"


class GateSettings(Strict):
    """Requests with a key, when all verifiers are full.

    queue_s: longest wait of a request.
    queue: most requests that wait at once.
    """

    queue_s: float = Field(30.0, ge=0)
    queue: int = Field(1024, ge=0)


class LedgerSettings(Strict):
    """Keys, terms and bills.

    path: SQLite file on the machine of the deployment Access, in an existing folder; null: in memory, and no keys can
        be made, unless there is a `database`.
    database: PostgreSQL database in place of a file, `postgresql://USER@HOST/NAME`; Access has the password from
        libpq's own places, as `PGPASSFILE` or `PGPASSWORD`.
    open: whether the API may open again after it had keys, with a ledger without any; otherwise Access refuses to
        start.
    """

    path: Path | None = None
    database: str | None = None
    open: bool = False

    @field_validator("database")
    @classmethod
    def _is_address(cls, database: str | None) -> str | None:
        if database is not None and not is_address(database):
            raise ValueError("it is no address, postgresql://USER@HOST/NAME")
        if database is not None and has_password(database):
            raise ValueError("settings are shown to many: leave the password to PGPASSFILE or PGPASSWORD")
        return database

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.path is not None and self.database is not None:
            raise ValueError("a ledger is in a file (path) or in a database, not in both")
        return self

    @property
    def place(self) -> Place | None:
        """Place of the ledger; None: memory."""
        return self.database or (self.path and self.path.expanduser())


class AccountSettings(Strict):
    """Prices of requests, and the terms of new accounts.

    price_in, price_out: the server's prices, dollars per million tokens.
    budget: share of prompt tokens that the constrained endpoint of a new account's races may take in.
    exchange_rate: price of a joule of a new account's devices, dollars.
    """

    price_in: float = Field(0.15, ge=0)
    price_out: float = Field(0.60, ge=0)
    budget: float = Field(0.5, ge=0, le=1)
    exchange_rate: float = Field(MAINS_USD_PER_J, ge=0)
