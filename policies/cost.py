"""What a request costs: dollars at the server, joules at the device, and one rate to compare them by.

DiSCo (Sun et al. 2025), section 4.3 and appendix E. A device's energy is linear in FLOPs (DiSCo's equations 9 to 11),
or what its profile says it draws. The exchange rate λ, dollars a joule, is what a joule is worth to its owner: the
price of electricity on mains, far more on the last tenth of a battery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from policies.dispatch import Side

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


PRICES: Mapping[str, PerToken] = {
    "deepseek-v2.5": per_million(0.14, 0.28),
    "gpt-4o-mini": per_million(0.15, 0.60),
    "llama-3.1-70b-hyperbolic": per_million(0.40, 0.40),
    "llama-3.1-70b-amazon": per_million(0.99, 0.99),
    "command": per_million(1.25, 2.00),
    "gpt-4o": per_million(2.50, 10.0),
    "claude-3.5-sonnet": per_million(3.00, 15.0),
    "o1-preview": per_million(15.0, 60.0),
}
"""DiSCo's table 8: dollars a token, as of 28 October 2024."""


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

    def usd(self, costs: Costs) -> float:
        """Total cost (DiSCo's appendix E.1): c_s·tokens at the server + λ·c_d·tokens at the device."""
        return costs.server.of(self.server_in, self.server_out) + costs.exchange_rate * self.joules(costs)

    def joules(self, costs: Costs) -> float:
        """The device's energy."""
        return costs.device.of(self.device_in, self.device_out)

    def add(self, other: Used) -> None:
        """Count another request's tokens as well."""
        self.server_in += other.server_in
        self.server_out += other.server_out
        self.device_in += other.device_in
        self.device_out += other.device_out


@dataclass(frozen=True, slots=True)
class Transformer:
    """A model's shape, as the energy model needs it.

    layers: how many.
    width: of the residual stream, d.
    heads: of attention.
    ffn: width of the feed-forward layers, d_ff.
    vocabulary: tokens, V.
    """

    layers: int
    width: int
    heads: int
    ffn: int
    vocabulary: int

    def decode_flops(self, length: int) -> float:
        """Floating-point operations of one token after `length` others, with a KV cache (DiSCo's equation 11)."""
        return self._flops(length * self.width / self.heads, length)

    def prefill_flops(self, length: int) -> float:
        """Floating-point operations of one token of a prompt of `length` (DiSCo's equation 10)."""
        return self._flops(length**2 * self.width / self.heads, length)

    def _flops(self, scores: float, length: int) -> float:
        """DiSCo's equation 9: embedding, attention, feed-forward, layer norms, output."""
        d = self.width
        attention = self.layers * (3 * d**2 + scores + length * d + d**2)
        ffn = self.layers * 2 * d * self.ffn
        norms = self.layers * 2 * d
        return 2 * self.vocabulary * d + attention + ffn + norms


BLOOM_1B1 = Transformer(24, 1024, 16, 4096, 250_880)
BLOOM_560M = Transformer(24, 512, 8, 2048, 250_880)
QWEN_500M = Transformer(24, 768, 12, 2048, 151_936)
