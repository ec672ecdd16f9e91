"""The paper's table of FLOPs, where its formulas give it, and its prices."""

from __future__ import annotations

import pytest

from tandem.benchmarks.disco.costs import BLOOM_1B1, PRICES, QWEN_500M, Transformer


@pytest.mark.parametrize("length", [32, 64, 128])
@pytest.mark.parametrize(("model", "billions"), [(BLOOM_1B1, 0.82), (QWEN_500M, 0.37)])
def test_flops_of_a_decoded_token_are_those_of_table_6(
    model: Transformer, billions: float, length: int
) -> None:
    assert model.decode_flops(length) / 1e9 == pytest.approx(billions, abs=0.006)


@pytest.mark.parametrize(("model", "billions"), [(BLOOM_1B1, 0.85), (QWEN_500M, 0.39)])
def test_flops_of_a_short_prompts_token_are_near_table_6(model: Transformer, billions: float) -> None:
    """Longer ones are not: the paper's figures there follow from L²·d, not from its L²·d / h."""
    assert model.prefill_flops(32) / 1e9 == pytest.approx(billions, rel=0.06)


def test_prices_are_of_a_token() -> None:
    assert PRICES["gpt-4o-mini"].of(1_000_000, 1_000_000) == pytest.approx(0.75)
