"""Costs: who is constrained, and sums."""

from __future__ import annotations

from tandem.policies.cost import Costs, PerToken, Used, per_million
from tandem.policies.race.dispatch import Side


def test_who_is_constrained_follows_the_exchange_rate():
    server, device = per_million(0.5, 1.0), PerToken(0.1, 0.5)  # dollars; joules
    assert Costs(server, device, 1e-9).constrained is Side.SERVER
    assert Costs(server, device, 1e-4).constrained is Side.DEVICE
    assert Costs(server, device, 5e-6).constrained is Side.SERVER  # they overlap: algorithm 1's else


def test_tokens_of_requests_add_up():
    used = Used(1, 2, 3, 4)
    used.add(Used(10, 20, 30, 40))
    assert used == Used(11, 22, 33, 44)


def test_tokens_in_and_out_have_prices():
    assert PerToken(2.0, 3.0).of(5, 7) == 31.0
    assert PerToken(2.0, 3.0).times(0.5) == PerToken(1.0, 1.5)
