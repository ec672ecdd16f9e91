"""What a request costs: dollars at the server, joules at the device, and one rate to compare them by.

DiSCo (Sun et al. 2025), section 4.3 and appendix E. A device's energy is linear in FLOPs (equations 9-11), or
what its profile says it draws. The exchange rate λ, dollars a joule, is what a joule is worth to its owner: the
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
    """Of one endpoint, for a token that it takes in and for one that it gives out, in one unit: dollars of a
    server, joules of a device."""

    prefill: float
    decode: float

    def of(self, tokens_in: int, tokens_out: int) -> float:
        """For so many tokens."""
        return self.prefill * tokens_in + self.decode * tokens_out

    def times(self, factor: float) -> PerToken:
        """In another unit."""
        return PerToken(self.prefill * factor, self.decode * factor)


def per_million(usd_in: float, usd_out: float) -> PerToken:
    """A price list's way to say it: dollars for a million tokens."""
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
"""Table 8: dollars a token, as of 28 October 2024."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Of a server and a device that share a request. server: dollars; device: joules; exchange_rate: λ,
    dollars a joule."""

    server: PerToken
    device: PerToken
    exchange_rate: float = MAINS_USD_PER_J

    @property
    def device_usd(self) -> PerToken:
        """λ·c_d: what the device's tokens are worth."""
        return self.device.times(self.exchange_rate)

    @property
    def constrained(self) -> Side:
        """Algorithm 1: the device where even its cheapest token is dearer than the server's dearest."""
        device, server = self.device_usd, self.server
        if min(device.prefill, device.decode) > max(server.prefill, server.decode):
            return Side.DEVICE
        return Side.SERVER


@dataclass(slots=True)
class Used:
    """Tokens that each endpoint took in and gave out, whether they came to anything or not."""

    server_in: int = 0
    server_out: int = 0
    device_in: int = 0
    device_out: int = 0

    def usd(self, costs: Costs) -> float:
        """Total cost (appendix E.1): c_s·tokens at the server + λ·c_d·tokens at the device."""
        return costs.server.of(self.server_in, self.server_out) + costs.exchange_rate * self.joules(costs)

    def joules(self, costs: Costs) -> float:
        """What the device spent."""
        return costs.device.of(self.device_in, self.device_out)

    def add(self, other: Used) -> None:
        """Another request's."""
        self.server_in += other.server_in
        self.server_out += other.server_out
        self.device_in += other.device_in
        self.device_out += other.device_out


@dataclass(frozen=True, slots=True)
class Transformer:
    """A model's shape, as the energy model needs it."""

    layers: int
    width: int
    heads: int
    ffn: int
    vocabulary: int

    def decode_flops(self, length: int) -> float:
        """Floating-point operations of one token after `length` others, with a KV cache (equation 11)."""
        return self._flops(length * self.width / self.heads, length)

    def prefill_flops(self, length: int) -> float:
        """Of one token of a prompt of `length` (equation 10)."""
        return self._flops(length**2 * self.width / self.heads, length)

    def _flops(self, scores: float, length: int) -> float:
        """Equation 9: embedding, attention, feed-forward, layer norms, output."""
        d = self.width
        attention = self.layers * (3 * d**2 + scores + length * d + d**2)
        ffn = self.layers * 2 * d * self.ffn
        norms = self.layers * 2 * d
        return 2 * self.vocabulary * d + attention + ffn + norms


BLOOM_1B1 = Transformer(24, 1024, 16, 4096, 250_880)
BLOOM_560M = Transformer(24, 512, 8, 2048, 250_880)
QWEN_500M = Transformer(24, 768, 12, 2048, 151_936)
