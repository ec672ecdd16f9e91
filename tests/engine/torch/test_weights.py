"""Folders that the engine cannot run are refused with what is the matter; none is run as another model.

That the supported ones compute what they should is tested in test_model.py.
"""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tandem.engine.models.model_folder import UnsupportedModel
from tandem.engine.torch.weights import Weights, load
from tests.engine.torch import tiny_weights


def read(folder: Path) -> Weights:
    return load(folder, torch.device("cpu"), torch.float32)


def _head_is_the_embedding(weights: Weights) -> None:
    torch.testing.assert_close(weights.head(torch.eye(weights.config.hidden)), weights.embedding.t())


def configure(folder: Path, **changes: Any) -> None:
    config = tiny_weights.config() | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))


def test_what_is_read(tmp_path: Path) -> None:
    tensors = tiny_weights.write(tmp_path, seed=1)
    weights = read(tmp_path)
    assert weights.config.vocab_size == tiny_weights.VOCAB
    _head_is_the_embedding(weights)
    assert torch.equal(weights.embedding, tensors["model.embed_tokens.weight"])
    assert len(weights.layers) == 2


@torch.inference_mode()
def test_the_forward_pass_equals_the_naive_one(tmp_path: Path) -> None:
    from tandem.engine.torch.attention.batch import BatchPiece
    from tandem.engine.torch.model import KVPool

    tiny = tiny_weights.make(tmp_path, seed=3)
    pool = KVPool(tiny.model.config, 8, 4, tiny.model.device, tiny.model.dtype)
    tokens = [5, 9, 2, 30, 11, 7, 7]
    logits = tiny.model.forward(tiny.model.batch([BatchPiece(tokens, 0, [6, 1], 7)], pool), pool)
    expected = torch.stack([tiny.logits(tuple(tokens[: i + 1])) for i in range(7)])
    torch.testing.assert_close(logits.cpu(), expected.cpu(), atol=1e-4, rtol=1e-4)


CONFIGS = {
    "another architecture": (
        {"architectures": ["GPT2LMHeadModel"]},
        r"GPT2LMHeadModel.*LlamaForCausalLM.*kind: vllm.*kind: llamacpp",
    ),
    "no architecture": ({"architectures": None}, r"LlamaForCausalLM"),
    "another activation": ({"hidden_act": "gelu"}, r"'gelu'"),
    "quantised weights": ({"quantization_config": {"quant_method": "awq"}}, r"quantised.*kind: vllm"),
    "both directions": ({"use_bidirectional_attention": True}, r"bidirectional"),
    "another rotary embedding": ({"rope_scaling": {"rope_type": "mrope"}}, r"'mrope'.*llama3, yarn"),
    "another head size": ({"head_dim": 4}, r"q_proj.weight is \[16, 16\], where the model has \[8, 16\]"),
    "no vocabulary size": ({"vocab_size": "absent"}, r"config\.json.*'vocab_size'"),
    "no context": ({"max_position_embeddings": "absent"}, r"'max_position_embeddings'"),
    "more layers than there are": ({"num_hidden_layers": 3}, r"layers\.2\."),
    "fewer layers than there are": ({"num_hidden_layers": 1}, r"does not know: layers\.1\."),
    "a head of its own that is missing": ({"tie_word_embeddings": False}, r"lm_head\.weight"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_that_does_not_fit(name: str, tmp_path: Path) -> None:
    changes, message = CONFIGS[name]
    tiny_weights.write(tmp_path, seed=1)
    configure(tmp_path, **changes)
    with pytest.raises(UnsupportedModel, match=message):
        read(tmp_path)


@pytest.mark.parametrize("bias", ["self_attn.o_proj.bias", "mlp.down_proj.bias"])
def test_a_bias_is_not_passed_over(bias: str, tmp_path: Path) -> None:
    tensors = tiny_weights.write(tmp_path, seed=1)
    tensors[f"model.layers.0.{bias}"] = torch.zeros(16)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=bias):
        read(tmp_path)


def test_what_need_not_be_read(tmp_path: Path) -> None:
    """A head beside tied embeddings, and the rotary frequencies that old folders hold."""
    tensors = tiny_weights.write(tmp_path, seed=1)
    tensors["lm_head.weight"] = torch.zeros(tiny_weights.VOCAB, 16)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    save_file(tensors, tmp_path / "model.safetensors")
    weights = read(tmp_path)
    _head_is_the_embedding(weights)


def test_several_files_are_one_model(tmp_path: Path) -> None:
    tensors = tiny_weights.write(tmp_path, seed=1)
    names = sorted(tensors)
    save_file({n: tensors[n] for n in names[:5]}, tmp_path / "model-1-of-2.safetensors")
    save_file({n: tensors[n] for n in names[5:]}, tmp_path / "model-2-of-2.safetensors")
    (tmp_path / "model.safetensors").unlink()
    assert len(read(tmp_path).layers) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_second_model_is_in_memory_while_one_is_loaded(dtype: torch.dtype, tmp_path: Path) -> None:
    """Bytes that torch allocates never exceed the loaded weights by more than three times the largest tensor, and these
    are no more than the model's numbers, a tied head's included once."""
    config = tiny_weights.config() | {"vocab_size": 2048, "hidden_size": 1024, "head_dim": 512}
    shapes = {
        "self_attn.q_proj": (1024, 1024),
        "self_attn.k_proj": (512, 1024),
        "self_attn.v_proj": (512, 1024),
        "self_attn.o_proj": (1024, 1024),
        "mlp.gate_proj": (1024, 1024),
        "mlp.up_proj": (1024, 1024),
        "mlp.down_proj": (1024, 1024),
        "input_layernorm": (1024,),
        "post_attention_layernorm": (1024,),
    }
    layers = 6
    tensors = {"model.embed_tokens.weight": torch.randn(2048, 1024), "model.norm.weight": torch.ones(1024)}
    for i in range(layers):
        tensors |= {f"model.layers.{i}.{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    config |= {"num_hidden_layers": layers, "intermediate_size": 1024, "max_position_embeddings": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    numbers = sum(tensor.numel() for tensor in tensors.values())
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        weights = load(tmp_path, torch.device("cpu"), dtype)
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    mapped = (tmp_path / "model.safetensors").stat().st_size  # the file counts as well, and needs no memory
    changes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()) if abs(e.nbytes()) != mapped]
    held = list(accumulate(changes))
    assert len(changes) == len(events) - 1
    assert weights.parameters == numbers
    assert held[-1] < 1.05 * numbers * dtype.itemsize
    if dtype == torch.float32:  # in the file's own precision, weights may stay in the file
        assert held[-1] > 0.9 * numbers * dtype.itemsize
    assert max(held) - held[-1] <= 3 * 2048 * 1024 * dtype.itemsize


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"no config\.json"):
        read(tmp_path)
    configure(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"no \*\.safetensors"):
        read(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnsupportedModel, match=r"no JSON"):
        read(tmp_path)
