"""Messages between a device's program and the gateway, beside the sessions of engines: a few calls a request.

Each is an Ask of the wire. Its body is msgpack of plain data, never a pickle, as devices are not trusted.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tandem.cluster.wire.frames import ProtocolError
from tandem.deployments.modes import MODES
from tandem.deployments.request.assignment import Assignment, EndpointInfo, Endpoints, Prices
from tandem.policies.cost import Used

REGISTER, ASSIGN, OVER, ACCOUNT = "register", "assign", "over", "account"
MIDDLES, ECHO = "middles", "echo"
"""The methods that the gateway answers: DeviceRecord → Registered, RoutingRequest → AssignmentMessage, Over → nothing,
nothing → Statement, a model's name → the SplitInfo of each kind of its middles, and any bytes → the same."""
SILENCE_S = 6.0
"""Seconds of silence after which a connection counts as broken; it may be resumed."""
ENGINE = "device"
"""Name of a device's own engine at its end of the connection."""

T = TypeVar("T")


class Registered(msgspec.Struct, frozen=True):
    """Confirmation of a registration.

    name: name of the device, from its key.
    account: account of its key, which pays for its usage.
    budget: budget of the key for races; None if unknown.
    """

    name: str
    account: str
    budget: float | None = None


class Over(msgspec.Struct, frozen=True):
    """End of a request.

    used, joules: usage of the device itself.
    assigned: whether the device had an assignment for it.
    """

    request: int
    used: Used
    joules: float
    assigned: bool = True


class AssignmentMessage(msgspec.Struct, frozen=True):
    """Message of an Assignment. briefing: the mode's briefing, packed."""

    mode: str
    endpoints: dict[str, EndpointInfo]
    device: str | None
    prices: Prices
    briefing: msgspec.Raw
    replaceable: frozenset[str]

    @classmethod
    def of(cls, made: Assignment) -> AssignmentMessage:
        """Return the assignment as a message."""
        briefing = msgspec.Raw(pack(made.briefing))
        endpoints = dict(made.endpoints)
        return cls(made.mode, endpoints, made.device, made.prices, briefing, made.replaceable)

    def assignment(self, endpoints: Endpoints) -> Assignment:
        """Return the executor's assignment with these endpoints. Raises ProtocolError."""
        if (mode := MODES.get(self.mode)) is None:
            raise ProtocolError(f"there is no mode {self.mode!r} here: the cloud is of another version")
        briefing = None if mode.briefing is None else unpack(self.briefing, mode.briefing)
        return Assignment(self.mode, endpoints, self.device, self.prices, briefing, self.replaceable)


def pack(said: object) -> bytes:
    """Encode the body of a call, or of its answer."""
    return msgspec.msgpack.encode(said)


def unpack(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode what `pack` encoded. Raises ProtocolError."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"no {kind.__name__}: {error}") from None
