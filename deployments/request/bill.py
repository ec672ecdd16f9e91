"""The bill of requests: tokens, dollars and joules; who pays it, and what for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tandem.policies.cost import Used


@dataclass(slots=True)
class Bill:
    """The cost of requests.

    used: tokens at both kinds of endpoint.
    server_usd_in, server_usd_out: dollars that the server asks for tokens taken in and given out.
    joules: spent by devices.
    device_usd: what those were worth when they were spent.
    """

    requests: int = 0
    used: Used = field(default_factory=Used)
    server_usd_in: float = 0.0
    server_usd_out: float = 0.0
    joules: float = 0.0
    device_usd: float = 0.0

    def add(self, other: Bill) -> None:
        """Add another bill to this one."""
        self.requests += other.requests
        self.used.add(other.used)
        self.server_usd_in += other.server_usd_in
        self.server_usd_out += other.server_usd_out
        self.joules += other.joules
        self.device_usd += other.device_usd

    @property
    def server_usd(self) -> float:
        """Dollars that the server asks for all of it."""
        return self.server_usd_in + self.server_usd_out


class Charge(NamedTuple):
    """A bill to be booked.

    account: that pays.
    device: name of the device that took part; "" if none did.
    mode: that served the requests last; "" where it is not known.
    model: by its name for clients; "" where it is not known.
    day: of the requests' end, UTC, as 2026-11-25; "" for usage from before days were kept.
    """

    account: str
    device: str
    bill: Bill
    mode: str = ""
    model: str = ""
    day: str = ""
