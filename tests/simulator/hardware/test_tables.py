"""Readers, on tables that these tests make up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.simulator.hardware import tables

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


ATTENTION = "attn_prefill_ms,attn_decode_ms,batch_size,prefill_chunk_size,kv_cache_size,is_prefill\n"


def test_vidurs_attention_counts_the_context_of_a_sequence(tmp_path: Path) -> None:
    file = tmp_path / "attention.csv"
    file.write_text(ATTENTION + "1,,1,64,0,True\n3,,1,64,128,True\n,0.5,4,0,100,False\n,0.9,4,0,200,False\n")
    decode, prefill = tables.vidur_attention(file)
    assert decode.at(4, 150) == pytest.approx(0.7e-3)
    assert prefill.at(64, 64) == pytest.approx(2e-3)


def test_servingsims_attention_counts_the_batch_and_the_chunk(tmp_path: Path) -> None:
    """400 tokens of four sequences are 100 of each; two of four sequences were never computed."""
    file = tmp_path / "attention.csv"
    file.write_text(
        ATTENTION
        + "1,,1,64,64,True\n3,,1,64,192,True\n,0.002,4,0,2,False\n,0.5,4,0,400,False\n,0.9,4,0,800,False\n"
    )
    decode, prefill = tables.servingsim_attention(file)
    assert decode.at(4, 150) == pytest.approx(0.7e-3)
    assert decode.at(4, 1) == pytest.approx(0.5e-3)
    assert prefill.at(64, 0) == pytest.approx(1e-3)
    assert prefill.at(64, 64) == pytest.approx(2e-3)
