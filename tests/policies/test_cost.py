"""Sums of tokens and of their prices."""

from __future__ import annotations

import pytest

from tandem.policies.cost import MAINS_USD_PER_J, PerToken, Used, per_million


def test_tokens_of_requests_add_up():
    used = Used(1, 2, 3, 4)
    used.add(Used(10, 20, 30, 40))
    assert used == Used(11, 22, 33, 44)


def test_tokens_in_and_out_have_prices():
    assert PerToken(2.0, 3.0).of(5, 7) == 31.0
    assert PerToken(2.0, 3.0).times(0.5) == PerToken(1.0, 1.5)


def test_nothing_was_used_yet_and_a_kilowatt_hour_is_a_quarter_of_a_dollar() -> None:
    assert Used() == Used(0, 0, 0, 0)
    assert pytest.approx(0.25) == MAINS_USD_PER_J * 3.6e6
    assert per_million(2.5, 10.0).of(1_000_000, 100_000) == pytest.approx(3.5)
