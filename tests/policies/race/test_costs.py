"""Costs: which endpoint is constrained."""

from __future__ import annotations

from tandem.policies.cost import PerToken, per_million
from tandem.policies.race.costs import Costs
from tandem.policies.race.dispatch import Side


def test_who_is_constrained_follows_the_exchange_rate():
    server, device = per_million(0.5, 1.0), PerToken(0.1, 0.5)  # dollars; joules
    assert Costs(server, device, 1e-9).constrained is Side.SERVER
    assert Costs(server, device, 1e-4).constrained is Side.DEVICE
    assert Costs(server, device, 5e-6).constrained is Side.SERVER  # they overlap: algorithm 1's else
