"""A job: one request on its way through the house, as the API hands it to the executor and gets it back."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.tokenlog import Origin
from engine.base import EngineError, Sampling, TokenLogprob
from policies.cost import Used


class UnknownMode(EngineError):
    """The mode is not one this application serves."""

    code = "unknown_mode"


class NoSuchDevice(EngineError):
    """No device of that name is registered (or none at all, where one is needed)."""

    code = "device_not_found"


class Draining(EngineError):
    """The application is going down and takes no new requests."""

    code = "draining"


@dataclass(frozen=True, slots=True)
class Job:
    """What the client asked for, in tokens.

    session: 63-bit random id, also the session id at every endpoint.
    mode, device, window: the client's wishes; None leaves the choice to the policies. device: a name, or those of
    several to pick from. account: who pays; budget, exchange_rate: as the account has them where None.
    """

    session: int
    prompt: tuple[int, ...]
    sampling: Sampling
    mode: str | None = None
    device: str | tuple[str, ...] | None = None
    window: int | None = None
    account: str = ""
    budget: float | None = None
    exchange_rate: float | None = None


@dataclass(slots=True)
class JobStats:
    """What a request cost. Times in seconds since the job reached the executor.

    rounds, drafted, accepted: speculative rounds, tokens drafted, tokens accepted; fused_rounds, fused_drafted:
    of them, those that stayed in the cloud though a device takes part; switches: between the two kinds.
    stages_s: seconds by stage (plan, open, draft, verify ...), summed over the request.
    replans: how often the request went on elsewhere after an endpoint failed; failovers: of a race, to the other
    endpoint; migrations: to the cheaper one; migrations_failed: that it could not take over.
    used: tokens taken in and given out at server and device, whatever became of them; joules: that these cost the
    device; usd: that they cost altogether, dollars.
    """

    mode: str = ""
    device: str | None = None
    ttft_s: float = 0.0
    total_s: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    by_origin: dict[str, int] = field(default_factory=dict)
    stages_s: dict[str, float] = field(default_factory=dict)
    replans: int = 0
    fused_rounds: int = 0
    fused_drafted: int = 0
    switches: int = 0
    failovers: int = 0
    migrations: int = 0
    migrations_failed: int = 0
    used: Used = field(default_factory=Used)
    joules: float = 0.0
    usd: float = 0.0


@dataclass(slots=True)
class Delta:
    """New output tokens of a job, in order. The last delta has `finish` ("stop" or "length") and `stats`."""

    ids: list[int]
    origins: list[Origin]
    finish: str | None = None
    logprobs: list[TokenLogprob] | None = None
    stats: JobStats | None = None
