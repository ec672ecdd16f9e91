"""Readers, on tables that these tests make up."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.simulator.hardware import tables

DENSE = (
    "emb_ms,input_layernorm_ms,attn_pre_proj_ms,attn_rope_ms,attn_post_proj_ms,post_attention_layernorm_ms,"
    "mlp_up_proj_ms,mlp_act_ms,mlp_down_proj_ms,add_ms,num_tokens,num_tensor_parallel_workers\n"
)


def test_vidurs_layers_are_summed_without_the_embedding(tmp_path: Path) -> None:
    file = tmp_path / "mlp.csv"
    file.write_text(DENSE + "9,1,1,1,1,1,1,1,1,1,16,1\n9,2,1,1,1,1,1,1,1,1,32,1\n9,5,5,5,5,5,5,5,5,5,16,2\n")
    curve = tables.vidur_dense(file, 1)
    assert curve.at(16) == pytest.approx(10e-3)  # nine operators, one of them twice
    assert curve.at(32) == pytest.approx(11e-3)
    with pytest.raises(tables.TableError, match=r"mlp\.csv: has no rows for 4"):
        tables.vidur_dense(file, 4)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mlp.csv"
    file.write_text("emb_ms,num_tokens\n1,2\n")
    with pytest.raises(tables.TableError, match=r"mlp\.csv, row 1: lacks the columns add_ms"):
        tables.vidur_dense(file, 1)


def test_attention_counts_the_chunk_or_does_not(tmp_path: Path) -> None:
    file = tmp_path / "attention.csv"
    file.write_text(
        "attn_prefill_ms,attn_decode_ms,batch_size,prefill_chunk_size,kv_cache_size,is_prefill\n"
        "1,,1,64,64,True\n3,,1,64,192,True\n,0.5,4,0,100,False\n,0.9,4,0,200,False\n"
    )
    decode, prefill = tables.attention(file, context_includes_chunk=True)
    assert decode.at(4, 150) == pytest.approx(0.7e-3)
    assert prefill.at(64, 0) == pytest.approx(1e-3)
    assert prefill.at(64, 64) == pytest.approx(2e-3)
    _, prefill = tables.attention(file, context_includes_chunk=False)
    assert prefill.at(64, 128) == pytest.approx(2e-3)


def test_measurements_that_cannot_be_are_dropped() -> None:
    points = [(32.0, 2.3), (64.0, 35.3), (96.0, 35.3), (128.0, 1.0), (160.0, 40.0)]
    assert sorted(tables.plausible(points)) == [(64.0, 35.3), (96.0, 35.3), (160.0, 40.0)]
    steps = [(32.0, 8.0), (64.0, 12.0), (96.0, 12.0), (128.0, 20.0)]
    assert sorted(tables.plausible(steps)) == steps
