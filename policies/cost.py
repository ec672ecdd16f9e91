"""Cost of a request: dollars at the server, joules at the device."""

from __future__ import annotations

from dataclasses import dataclass

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
