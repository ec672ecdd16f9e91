"""Record of a device: its address and its state."""

from __future__ import annotations

import msgspec

from tandem.cluster.link.state import LinkState
from tandem.engine.base import Continuation


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a device can load; as in DeviceRecord.

    load_s: seconds that loading it takes, as measured, or as its profile says.
    """

    name: str
    vocabulary: str
    load_s: float = 0.0
    prefill_token_s: float = 0.0
    decode_token_s: float = 0.0
    prefill_j: float = 0.0
    decode_j: float = 0.0


def engine_name(device: str, model: str) -> str:
    """Return the engine's name, at its endpoint, of a device with one of its several models."""
    return f"{device}/{model}"


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """State of a device, which its host sends every time it registers.

    name: of the device, and of its engine at its endpoint, unless it has one for each of its models (`engine_name`).
    address: of the endpoint, "host:port".
    model, vocabulary: of the loaded model, as are the figures.
    models: all models that it can load; empty if it has one alone.
    rtt_s: round-trip time of its link, seconds.
    sessions: number of sessions that it works on now.
    opened: number of sessions so far, which also tells of one that came and went since the last record.
    capacity: most sessions that it works on at once.
    battery: share left, None on mains.
    emulated: whether it is slowed to other hardware's speed.
    prefill_token_s, decode_token_s: seconds to take in a token and to give one out, 0 where not known.
    prefill_j, decode_j: joules that a token costs.
    energy_j: joules spent so far.
    dialled_in: whether it is a program of its own behind a gateway, whose address it shares with others.
    dialled_s: when it dialled in, seconds since the epoch.
    continuation: as in EngineInfo.
    serves: names of the cloud's models whose requests it takes part in; empty: all.
    link: of its link besides the round trip; None: nothing is known.
    """

    name: str
    address: str
    profile: str
    model: str
    vocabulary: str
    rtt_s: float = 0.0
    sessions: int = 0
    opened: int = 0
    capacity: int = 1
    battery: float | None = None
    emulated: bool = False
    prefill_token_s: float = 0.0
    decode_token_s: float = 0.0
    prefill_j: float = 0.0
    decode_j: float = 0.0
    energy_j: float = 0.0
    dialled_in: bool = False
    models: tuple[ModelRecord, ...] = ()
    continuation: Continuation = "kept"
    serves: tuple[str, ...] = ()
    link: LinkState | None = None
    dialled_s: float = 0.0
