"""Costs of a token in DiSCo's evaluation: its services' prices, and the FLOPs of its phones' models (appendix E).

A device's energy is linear in FLOPs there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandem.policies.cost import PerToken, per_million

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
