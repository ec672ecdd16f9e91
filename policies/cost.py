"""What a request costs: dollars at the server, joules at the device, and one rate to compare them by.

DiSCo (Sun et al. 2025), section 4.3. The exchange rate λ, dollars a joule, is what a joule is worth to its owner: the
price of electricity on mains, far more on the last tenth of a battery.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.policies.race.dispatch import Side

MAINS_USD_PER_J = 0.25 / 3.6e6
"""0.25 dollars a kilowatt-hour."""


@dataclass(frozen=True, slots=True)
class PerToken:
    """What a token costs at one endpoint: dollars at a server, joules at a device.

    prefill: for one that it takes in.
    decode: for one that it gives out.
    """

    prefill: float
    decode: float

    def of(self, tokens_in: int, tokens_out: int) -> float:
        """The cost of so many tokens in and out."""
        return self.prefill * tokens_in + self.decode * tokens_out

    def times(self, factor: float) -> PerToken:
        """The same in another unit, so many of which make one of this."""
        return PerToken(self.prefill * factor, self.decode * factor)


def per_million(usd_in: float, usd_out: float) -> PerToken:
    """Prices as price lists give them: dollars for a million tokens."""
    return PerToken(usd_in * 1e-6, usd_out * 1e-6)


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a server and a device that share a request.

    server: dollars a token.
    device: joules a token.
    exchange_rate: λ, dollars a joule.
    """

    server: PerToken
    device: PerToken
    exchange_rate: float = MAINS_USD_PER_J

    @property
    def device_usd(self) -> PerToken:
        """λ·c_d: the device's costs in dollars a token."""
        return self.device.times(self.exchange_rate)

    @property
    def constrained(self) -> Side:
        """DiSCo's algorithm 1: the device where even its cheapest token is dearer than the server's dearest."""
        device, server = self.device_usd, self.server
        if min(device.prefill, device.decode) > max(server.prefill, server.decode):
            return Side.DEVICE
        return Side.SERVER


@dataclass(slots=True)
class Used:
    """Tokens that each endpoint processed, whether or not they became part of an answer.

    server_in, device_in: taken in.
    server_out, device_out: given out.
    """

    server_in: int = 0
    server_out: int = 0
    device_in: int = 0
    device_out: int = 0

    def add(self, other: Used) -> None:
        """Count another request's tokens as well."""
        self.server_in += other.server_in
        self.server_out += other.server_out
        self.device_in += other.device_in
        self.device_out += other.device_out
