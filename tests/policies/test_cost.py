"""Sums of tokens and of their prices."""

from __future__ import annotations

from tandem.policies.cost import PerToken, Used


def test_tokens_of_requests_add_up():
    used = Used(1, 2, 3, 4)
    used.add(Used(10, 20, 30, 40))
    assert used == Used(11, 22, 33, 44)


def test_tokens_in_and_out_have_prices():
    assert PerToken(2.0, 3.0).of(5, 7) == 31.0
    assert PerToken(2.0, 3.0).times(0.5) == PerToken(1.0, 1.5)
