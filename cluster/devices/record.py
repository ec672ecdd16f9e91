"""Record of a device: its address and its state."""

from __future__ import annotations

import msgspec


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
    model, vocabulary: of what is loaded, as are the figures.
    models: those that it can load, the one that is loaded included; none: it has that alone.
    rtt_s: round-trip time of its link, seconds.
    sessions: that it works on now.
    opened: sessions so far; one that came and went since the last record is news, too.
    capacity: sessions that it works on at most.
    battery: share left, None on mains.
    emulated: it is slowed to other hardware's speed.
    prefill_token_s, decode_token_s: seconds to take in a token and to give one out, 0 where not known.
    prefill_j, decode_j: joules that a token costs.
    energy_j: joules spent so far.
    dialled_in: it is a program of its own, reached through a gateway: others at that address may be well without it.
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
