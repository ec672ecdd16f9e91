"""Costs of a server and a device that share a request, and an exchange rate between dollars and joules.

DiSCo (Sun et al. 2025), section 4.3. The exchange rate λ, dollars per joule, is what a joule is worth to the device's
owner: the price of electricity on mains, far more on the last tenth of a battery.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.policies.cost import MAINS_USD_PER_J, PerToken
from tandem.policies.race.dispatch import Side


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
        device, server = self.device, self.server
        if self.exchange_rate * min(device.prefill, device.decode) > max(server.prefill, server.decode):
            return Side.DEVICE
        return Side.SERVER
