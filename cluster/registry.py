"""The devices that are there: who registered, where it is reached, and when it was last heard of."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from policies.collaboration import DeviceView


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a device host says of one of its devices, every time it registers.

    name: of the device, and of its engine at the endpoint `address` ("host:port").
    rtt_s: round-trip time of its link, seconds. battery: share left, None on mains.
    sessions, capacity: that it works on now, and at most. emulated: it is slowed to other hardware's speed.
    prefill_token_s: seconds to take in a token, 0 where not known; prefill_j, decode_j: joules that a token costs;
    energy_j: spent so far.
    """

    name: str
    address: str
    profile: str
    model: str
    vocabulary: str
    rtt_s: float = 0.0
    sessions: int = 0
    capacity: int = 1
    battery: float | None = None
    emulated: bool = False
    prefill_token_s: float = 0.0
    prefill_j: float = 0.0
    decode_j: float = 0.0
    energy_j: float = 0.0


class DeviceRegistry:
    """Devices by name, as last registered. Registering is also the sign of life; whoever gives none for
    `expiry_s` seconds is not there. The caller says what time it is, in seconds of any one clock."""

    def __init__(self, expiry_s: float = 5.0) -> None:
        self.expiry_s = expiry_s
        self._devices: dict[str, tuple[DeviceRecord, float]] = {}

    def register(self, records: Iterable[DeviceRecord], now_s: float) -> None:
        """Add devices, or replace what was known of them; a restarted host has a new address."""
        for record in records:
            self._devices[record.name] = (record, now_s)

    def remove(self, name: str) -> None:
        """Forget a device; an unknown one is ignored."""
        self._devices.pop(name, None)

    def lost(self, address: str) -> None:
        """Forget the devices at an address that does not answer; they come back by registering again."""
        for name in [name for name, (record, _) in self._devices.items() if record.address == address]:
            del self._devices[name]

    def get(self, name: str, now_s: float) -> DeviceRecord | None:
        """The device, if it is there."""
        record, heard_s = self._devices.get(name, (None, 0.0))
        return record if now_s - heard_s <= self.expiry_s else None

    def present(self, now_s: float) -> list[DeviceRecord]:
        """The devices that are there, by name."""
        return [
            record
            for _, (record, heard_s) in sorted(self._devices.items())
            if now_s - heard_s <= self.expiry_s
        ]

    def views(self, now_s: float) -> list[DeviceView]:
        """The devices that are there, as a policy sees them."""
        return [DeviceView(r.name, r.rtt_s, r.sessions) for r in self.present(now_s)]
