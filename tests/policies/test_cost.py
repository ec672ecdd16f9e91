"""Costs: the paper's table of FLOPs where its formulas give it, who is constrained, and sums."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cost import BLOOM_1B1, PRICES, QWEN_500M, Costs, PerToken, Used, per_million
from policies.dispatch import Side


@pytest.mark.parametrize("length", [32, 64, 128])
@pytest.mark.parametrize(("model", "billions"), [(BLOOM_1B1, 0.82), (QWEN_500M, 0.37)])
def test_flops_of_a_decoded_token_are_those_of_table_6(model, billions, length):
    assert model.decode_flops(length) / 1e9 == pytest.approx(billions, abs=0.006)


@pytest.mark.parametrize(("model", "billions"), [(BLOOM_1B1, 0.85), (QWEN_500M, 0.39)])
def test_flops_of_a_short_prompts_token_are_near_table_6(model, billions):
    """Longer ones are not: the paper's figures there follow from L²·d, not from its L²·d / h."""
    assert model.prefill_flops(32) / 1e9 == pytest.approx(billions, rel=0.06)


def test_prices_are_of_a_token():
    assert PRICES["gpt-4o-mini"].of(1_000_000, 1_000_000) == pytest.approx(0.75)


def test_who_is_constrained_follows_the_exchange_rate():
    server, device = per_million(0.5, 1.0), PerToken(0.1, 0.5)  # dollars; joules
    assert Costs(server, device, 1e-9).constrained is Side.SERVER
    assert Costs(server, device, 1e-4).constrained is Side.DEVICE
    assert Costs(server, device, 5e-6).constrained is Side.SERVER  # they overlap: algorithm 1's else


tokens = st.integers(0, 10_000)


@given(tokens, tokens, tokens, tokens, st.floats(0, 1))
def test_a_request_costs_what_its_tokens_cost(a, b, c, d, rate):
    costs = Costs(PerToken(2e-6, 3e-6), PerToken(0.5, 0.7), rate)
    used = Used(a, b, c, d)
    assert used.joules(costs) == pytest.approx(0.5 * c + 0.7 * d)
    assert used.usd(costs) == pytest.approx(2e-6 * a + 3e-6 * b + rate * used.joules(costs))
    twice = Used()
    twice.add(used)
    twice.add(used)
    assert twice.usd(costs) == pytest.approx(2 * used.usd(costs))
