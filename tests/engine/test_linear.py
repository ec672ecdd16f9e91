"""Projections equal the definition, whichever layout serves the call."""

from __future__ import annotations

import pytest
import torch

from engine import linear
from engine.linear import Linear


@pytest.mark.parametrize("large", [False, True], ids=["both layouts", "packed only"])
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 31, 33, 100])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_the_definition(
    rows: int, with_bias: bool, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "WORTH_A_CALL", 5000)  # so that few rows are multiplied by the plain one
    if large:
        monkeypatch.setattr(linear, "LARGE", 1)
    g = torch.Generator().manual_seed(rows)
    weight, bias = torch.randn(48, 32, generator=g), torch.randn(48, generator=g)
    x, residual = torch.randn(rows, 32, generator=g), torch.randn(rows, 48, generator=g)
    before = residual.clone()
    with torch.inference_mode():
        projection = Linear(weight, bias if with_bias else None)
        expected = x @ weight.t() + (bias if with_bias else 0.0)
        torch.testing.assert_close(projection(x), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(projection(x, residual), expected + residual, atol=1e-4, rtol=1e-4)
    assert torch.equal(residual, before), "the residual is the caller's"
