"""What the router answers: the mode of a request, and the endpoints that will serve it."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.registry import DeviceRecord
from engine.base import EngineError, EngineStopped
from policies.cost import PerToken


class NoEndpoint(EngineStopped):
    """Nothing that could serve the request is up."""


class EndpointLost(EngineError):
    """An endpoint failed this request; others may still serve it."""

    code = "endpoint_lost"

    def __init__(self, endpoint: EndpointInfo, why: str) -> None:
        super().__init__(f"{endpoint.name} at {endpoint.address}: {why}")
        self.endpoint = endpoint


@dataclass(frozen=True, slots=True)
class EndpointInfo:
    """An engine that can be reached on the wire.

    name: what people call it (the device's name, or the pool and replica); address: "host:port";
    engine: its name at that address; model, vocabulary: as in EngineInfo;
    sessions: how many it works on, waiting ones included;
    rtt_s: round-trip time of its link, seconds.
    device: whether it is one; then prefill_token_s: seconds to take in a token, joules: that a token costs it.
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
    joules: PerToken = PerToken(0.0, 0.0)  # noqa: RUF009  (frozen)

    @classmethod
    def of(cls, device: DeviceRecord) -> EndpointInfo:
        """The endpoint of a registered device."""
        return cls(
            name=device.name,
            address=device.address,
            engine=device.name,
            model=device.model,
            vocabulary=device.vocabulary,
            sessions=device.sessions,
            rtt_s=device.rtt_s,
            device=True,
            prefill_token_s=device.prefill_token_s,
            joules=PerToken(device.prefill_j, device.decode_j),
        )

    @property
    def key(self) -> str:
        """Tells it from every other one, and from a restarted one in its place."""
        return f"{self.engine}@{self.address}"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What matters for an assignment: the client's mode and device (None: open), and the keys of the
    endpoints that have already failed this request."""

    mode: str | None = None
    device: str | tuple[str, ...] | None = None
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """target: the endpoint whose tokens count (in mode device, the device; in mode race, the server). drafter: in
    mode speculative; rival: the device in mode race.

    device: the name of the device that takes part, if one does. fused: the cloud's own drafter, for rounds
    without the device. queue: the target's sessions in relation to its batch limit; batch_limit:
    sessions that one of its steps takes, 0 where that is not known.
    """

    mode: str
    target: EndpointInfo
    drafter: EndpointInfo | None = None
    device: str | None = None
    queue: float = 0.0
    fused: EndpointInfo | None = None
    batch_limit: int = 0
    rival: EndpointInfo | None = None
