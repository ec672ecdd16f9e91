"""Root mean square normalisation against its definition."""

from __future__ import annotations

import pytest
import torch

from tandem.engine.torch.layers.norm import RMSNorm


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 1e3, 1e15])
@pytest.mark.parametrize("shape", [(1, 64), (7, 64), (5, 3, 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_equals_the_definition(shape: tuple[int, ...], scale: float, dtype: torch.dtype) -> None:
    """Also where eps decides."""
    g = torch.Generator().manual_seed(1)
    x, weight = (scale * torch.randn(shape, generator=g)).to(dtype), torch.randn(64, generator=g).to(dtype)
    before, exact = x.clone(), x.double()
    expected = exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    tolerance = 1e-5 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(RMSNorm(weight, 1e-5)(x).double(), expected, atol=1e-6, rtol=tolerance)
    assert torch.equal(x, before), "the input is the caller's"
