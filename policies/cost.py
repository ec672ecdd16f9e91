"""Cost of a request: dollars at the server, joules at the device, and an exchange rate between them.

DiSCo (Sun et al. 2025), section 4.3. The exchange rate λ, dollars per joule, is what a joule is worth to the device's
owner: the price of electricity on mains, far more on the last tenth of a battery.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.policies.race.dispatch import Side

MAINS_USD_PER_J = 0.25 / 3.6e6
"""Price of mains electricity: 0.25 dollars per kilowatt-hour."""


@dataclass(frozen=True, slots=True)
class PerToken:
    """Cost of a token at one endpoint: dollars at a server, joules at a device.

    prefill: of an input token.
    decode: of an output token.
    """

    prefill: float
    decode: float

    def of(self, tokens_in: int, tokens_out: int) -> float:
        """Return the cost of these tokens."""
        return self.prefill * tokens_in + self.decode * tokens_out

    def times(self, factor: float) -> PerToken:
        """Return the costs multiplied by `factor`, for instance to convert their unit."""
        return PerToken(self.prefill * factor, self.decode * factor)


def per_million(usd_in: float, usd_out: float) -> PerToken:
    """Return the costs of a price list in dollars per million tokens."""
    return PerToken(usd_in * 1e-6, usd_out * 1e-6)


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a server and a device that share a request.

    server: dollars per token.
    device: joules per token.
    exchange_rate: λ, dollars per joule.
    """

    server: PerToken
    device: PerToken
    exchange_rate: float = MAINS_USD_PER_J

    @property
    def device_usd(self) -> PerToken:
        """λ·c_d: the device's costs in dollars per token."""
        return self.device.times(self.exchange_rate)

    @property
    def constrained(self) -> Side:
        """Return the endpoint to limit, by DiSCo's algorithm 1: the device if its cheapest token costs more than the
        server's dearest."""
        device, server = self.device_usd, self.server
        if min(device.prefill, device.decode) > max(server.prefill, server.decode):
            return Side.DEVICE
        return Side.SERVER


@dataclass(slots=True)
class Used:
    """Tokens that each endpoint processed, whether or not they became part of an answer.

    server_in, device_in: input tokens.
    server_out, device_out: output tokens.
    """

    server_in: int = 0
    server_out: int = 0
    device_in: int = 0
    device_out: int = 0

    def add(self, other: Used) -> None:
        """Add another request's tokens."""
        self.server_in += other.server_in
        self.server_out += other.server_out
        self.device_in += other.device_in
        self.device_out += other.device_out
