"""Ragged attention beside padded attention. On a GPU the kernels run themselves, otherwise a plain stand-in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.models.architectures import ModelConfig
from tandem.engine.torch.attention import flash
from tandem.engine.torch.attention.batch import BatchPiece
from tandem.engine.torch.attention.padded import PaddedLayout
from tests.engine.torch.attention.shapes import SHAPE
from tests.engine.torch.place import DEVICE

BLOCK, BLOCKS = 4, 128
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32


def plain_varlen_attn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> torch.Tensor:
    """Compute what torch documents of `varlen_attn`, sequence by sequence: the last query sees the last key, and the
    window counts the positions before a query's own."""
    assert enable_gqa
    assert window_size[1] == 0
    outputs, starts_q, starts_k = [], cu_seq_q.tolist(), cu_seq_k.tolist()
    for i in range(len(starts_q) - 1):
        q, k, v = (
            tensor[starts[i] : starts[i + 1]].transpose(0, 1)
            for tensor, starts in ((query, starts_q), (key, starts_k), (value, starts_k))
        )
        assert q.shape[1] <= max_q
        assert k.shape[1] <= max_k
        own = torch.arange(k.shape[1] - q.shape[1], k.shape[1])[:, None]
        seen = torch.arange(k.shape[1])[None]
        mask = seen <= own
        if window_size[0] >= 0:
            mask &= seen >= own - window_size[0]
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=mask, scale=scale, enable_gqa=True
        )
        outputs.append(mixed[0].transpose(0, 1))
    return torch.cat(outputs)


@st.composite
def pieces(draw: st.DrawFn) -> list[BatchPiece]:
    """Pieces over scattered blocks that none shares, alike ones side by side."""
    counts = draw(
        st.lists(st.tuples(st.integers(0, 30), st.sampled_from([1, 1, 5, 20])), min_size=1, max_size=8)
    )
    free = draw(st.permutations(range(BLOCKS)))
    made = []
    for start, count in sorted(counts, key=lambda pair: (pair[1], pair[0])):
        needed = -(-(start + count) // BLOCK)
        made.append(BatchPiece([7] * count, start, free[:needed], 1))
        free = free[needed:]
    return made


@pytest.mark.parametrize("sliding", [False, True])
@pytest.mark.parametrize("shape", [SHAPE, replace(SHAPE, window=8, query_scale=0.3)], ids=["plain", "window"])
@given(batch=pieces(), seed=st.integers(0, 9))
def test_equals_padded_attention(
    shape: ModelConfig, sliding: bool, batch: list[BatchPiece], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = sum(len(p.ids) for p in batch)
    query = torch.randn(rows, shape.heads, shape.head_dim, generator=generator).to(DEVICE, DTYPE)
    width = BLOCK * 2 * shape.kv_heads * shape.head_dim
    kv = torch.randn(BLOCKS, width, generator=generator).to(DEVICE, DTYPE)
    expected = PaddedLayout(shape, DEVICE, DTYPE)(batch, BLOCK)(query, kv, sliding and bool(shape.window))
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE.type == "cpu":
            patch.setattr("torch.nn.attention.varlen.varlen_attn", plain_varlen_attn)
        found = flash.FlashLayout(shape, DEVICE)(batch, BLOCK)(query, kv, sliding and bool(shape.window))
    tolerance = 1e-5 if DTYPE is torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def test_only_where_the_kernels_compute_it() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert flash.fits(SHAPE, gpu, torch.bfloat16)
    assert flash.fits(SHAPE, gpu, torch.float16)
    assert not flash.fits(SHAPE, gpu, torch.float32)
    assert not flash.fits(SHAPE, cpu, torch.bfloat16)
    assert not flash.fits(replace(SHAPE, attention_cap=50.0), gpu, torch.bfloat16)
    assert not flash.fits(replace(SHAPE, head_dim=512), gpu, torch.bfloat16)
    assert not flash.fits(replace(SHAPE, head_dim=12), gpu, torch.bfloat16)
