"""Requests to the router and its answers: a request's mode, its endpoints by role, and the learned state it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from tandem.cluster.devices.record import DeviceRecord, ModelRecord, engine_name
from tandem.deployments.request.forecast import Forecast
from tandem.engine.base import Continuation, EngineError, EngineStats, EngineStopped, SplitInfo
from tandem.engine.served import Served
from tandem.policies.autoscaling.handover import room
from tandem.policies.cost import MAINS_USD_PER_J, PerToken
from tandem.policies.routing.objectives import Objective

FREE = PerToken(0.0, 0.0)


class NoEndpoint(EngineStopped):
    """No endpoint is up that could serve the request. pool: the empty one; None if the cause is another."""

    def __init__(self, message: str, pool: str | None = None) -> None:
        super().__init__(message)
        self.pool = pool


class Unavailable(EngineStopped):
    """A deployment of the control plane does not answer."""


Loss = Literal["lost", "late", "full", "refused", "unfit"]
"""Ways in which an endpoint fails a request: it is gone or broke down, did not answer in time, had no room, has a
service that refuses this application, or has another part of a split model."""


class EndpointLost(EngineError):
    """An endpoint failed this request; others may still serve it."""

    code = "endpoint_lost"

    def __init__(self, endpoint: EndpointInfo, why: str, loss: Loss = "lost") -> None:
        super().__init__(f"{endpoint.name} at {endpoint.address}: {why}")
        self.endpoint, self.loss = endpoint, loss


DERIVED = ("room", "backlog")
"""Fields of Load that are no gauges of an engine."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a replica's engine, as of the last news of its pool. Fields as in EngineStats.

    served: None if the engine does not tell.
    room: how many more sessions would find a place.
    backlog: tokens that sessions wait for to be computed before they decode; None if the engine does not tell.
    """

    waiting: int = 0
    blocks_free: int = 0
    blocks_total: int = 0
    block_size: int = 1
    preempted: int = 0
    tokens_queried: int = 0
    tokens_from_prefix: int = 0
    served: Served | None = None
    first_token_s: float = 0.0
    room: int = 0
    backlog: int | None = None

    @classmethod
    def of(cls, stats: EngineStats, places: int) -> Load:
        """Return the load that an engine's stats tell of. places: most sessions in a step."""
        told = {each.name: getattr(stats, each.name) for each in fields(cls) if each.name not in DERIVED}
        left = room(places, stats.sessions, stats.waiting, stats.blocks_free, stats.blocks_total)
        return cls(**told, room=left, backlog=stats.outstanding.backlog if stats.blocks_total else None)


IDLE = Load()


@dataclass(frozen=True, slots=True)
class EndpointInfo:
    """An engine that can be reached on the wire.

    name: what people call it: the device's name, or the pool and the replica.
    address: "host:port".
    engine: its name at that address.
    model, vocabulary: as in EngineInfo.
    sessions: how many it works on, waiting ones included.
    rtt_s: round-trip time of its link, seconds; 0 where it is not behind one.
    device: whether it is a device rather than a replica.
    prefill_token_s, decode_token_s: of a device, seconds to take in a token and to give one out; 0 where not known.
    joules: of a device, what a token costs it.
    load: of a replica; that it has changed is no news.
    split: which part of a split model it has; None: a whole one.
    load_s: of a device that has another of its models loaded, seconds until it has this one.
    price: of a service, what it asks for a token, dollars; None: the application's prices.
    continuation: as in EngineInfo.
    refusal: as in EngineStats.
    rests: whether new sessions had better go elsewhere.
    """

    name: str
    address: str
    engine: str
    model: str = ""
    vocabulary: str = ""
    sessions: int = 0
    rtt_s: float = 0.0
    device: bool = False
    prefill_token_s: float = 0.0
    decode_token_s: float = 0.0
    joules: PerToken = FREE
    load: Load = field(default=IDLE, compare=False)
    split: SplitInfo | None = None
    load_s: float = 0.0
    price: PerToken | None = None
    continuation: Continuation = "kept"
    refusal: str | None = None
    rests: bool = False

    @classmethod
    def of(cls, device: DeviceRecord) -> EndpointInfo:
        """Return the endpoint of a registered device, with the model that it has loaded."""
        return cls(
            name=device.name,
            address=device.address,
            engine=engine_name(device.name, device.model) if device.models else device.name,
            model=device.model,
            vocabulary=device.vocabulary,
            sessions=device.sessions,
            rtt_s=device.rtt_s,
            device=True,
            prefill_token_s=device.prefill_token_s,
            decode_token_s=device.decode_token_s,
            joules=PerToken(device.prefill_j, device.decode_j),
            continuation=device.continuation,
        )

    def having(self, model: ModelRecord, load_s: float) -> EndpointInfo:
        """Return the endpoint of the same device with another of its models."""
        return replace(
            self,
            engine=engine_name(self.name, model.name),
            model=model.name,
            vocabulary=model.vocabulary,
            prefill_token_s=model.prefill_token_s,
            decode_token_s=model.decode_token_s,
            joules=PerToken(model.prefill_j, model.decode_j),
            load_s=load_s,
        )

    @property
    def continues(self) -> bool:
        """Whether it can go on with an answer that has begun."""
        return self.continuation != "none"

    @property
    def key(self) -> str:
        """Tells it from every other one, and from a restarted one in its place; a device is one, whatever its model."""
        return f"{self.name if self.device else self.engine}@{self.address}"


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """State of a request that an assignment depends on.

    mode, device: requested by the client, or None; device: a name, or several to pick from.
    lost: keys of the endpoints that have failed this request.
    full: keys of those that had no room for it.
    silent: keys of replicas that do not answer the process that asks.
    request: its id, which its report repeats.
    prompt_tokens, max_tokens: tokens of the prompt, and of the answer at most.
    sent: tokens of the answer so far.
    reader_rate: tokens/s; 0: there is no reader.
    account: who pays.
    budget, exchange_rate: of this request, in place of its account's.
    modes, devices: that the account may use; None: all.
    split: part of a split model that the request's driver has; None: none.
    model: name of the model that is asked for; "": the first one.
    priority: among the account's requests that wait for room, the lowest first.
    trace: as in Sampling.
    objective: what counts for it; None: what the router's policy says.
    content: as `policies.routing.content` has it.
    unsuited: names of modes that would not serve it in their own way.
    """

    mode: str | None = None
    device: str | tuple[str, ...] | None = None
    lost: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    request: int = 0
    prompt_tokens: int = 1
    max_tokens: int = 256
    sent: int = 0
    reader_rate: float = 0.0
    account: str = ""
    budget: float | None = None
    exchange_rate: float | None = None
    modes: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    split: SplitInfo | None = None
    model: str = ""
    priority: int = 0
    trace: str = ""
    objective: Objective | None = None
    content: str = ""
    unsuited: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        """Names of the devices that the client asks for."""
        return (self.device,) if isinstance(self.device, str) else self.device or ()


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a request's tokens.

    server: dollars a token.
    exchange_rate: what a joule of the account's devices is worth, dollars.
    """

    server: PerToken = FREE
    exchange_rate: float = MAINS_USD_PER_J


Endpoints = Mapping[str, EndpointInfo]
"""Endpoints by role; unfilled roles are missing."""


@dataclass(frozen=True, slots=True)
class Present:
    """Way in which an answer under way is given, when another one is asked for.

    mode, device, endpoints: as in Assignment.
    tpot_s: seconds per token lately.
    """

    mode: str
    device: str | None
    endpoints: Endpoints
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Assignment:
    """Assignment of a request.

    mode: its name in `deployments.modes.MODES`.
    endpoints: by role.
    device: the name of the device that takes part, if one does.
    prices: of its tokens.
    briefing: learned state for the mode, as its `brief` made it.
    replaceable: roles whose endpoints could be replaced.
    forecast: what is expected of the answer, and why it is so assigned; None where the policy compared nothing.
    """

    mode: str
    endpoints: Endpoints
    device: str | None = None
    prices: Prices = field(default_factory=Prices)
    briefing: object = None
    replaceable: frozenset[str] = frozenset()
    forecast: Forecast | None = None
