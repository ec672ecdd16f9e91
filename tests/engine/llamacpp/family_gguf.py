"""The embedded family as GGUF files."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors import safe_open

from tandem.engine import family

LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Names of a layer's tensors, here and in a GGUF file."""


def write(name: str, file: Path) -> Path:
    """Write a model of the family in float32, and return the file."""
    folder = family.path(name)
    config = json.loads((folder / "config.json").read_text())
    vocab = json.loads((folder / "tokenizer.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    out = gguf.GGUFWriter(str(file), "llama")
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads)
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    out.add_rope_dimension_count(config["head_dim"])
    out.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_vocab_size(config["vocab_size"])
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    special = {token["id"] for token in vocab["added_tokens"]}
    ids = vocab["model"]["vocab"] | {token["content"]: token["id"] for token in vocab["added_tokens"]}
    names = {i: text for text, i in ids.items()}
    size = config["vocab_size"]
    out.add_token_list([names.get(i, f"[PAD{i}]") for i in range(size)])
    out.add_token_types([3 if i in special else 1 if i in names else 5 for i in range(size)])
    out.add_token_merges([" ".join(pair) for pair in vocab["model"]["merges"]])
    out.add_bos_token_id(config["bos_token_id"])
    out.add_eos_token_id(config["eos_token_id"])
    out.add_add_bos_token(False)
    out.add_chat_template((folder / "chat_template.jinja").read_text())
    with safe_open(folder / "model.safetensors", framework="pt") as tensors:
        for key in tensors.keys():  # noqa: SIM118 - a safetensors handle, not a dict
            weight = tensors.get_tensor(key).float().numpy()
            if key.endswith(("q_proj.weight", "k_proj.weight")):
                weight = _interleaved(weight, heads if "q_proj" in key else kv_heads)
            out.add_tensor(_named(key), np.ascontiguousarray(weight))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return file


def _named(key: str) -> str:
    if key == "model.embed_tokens.weight":
        return "token_embd.weight"
    if key == "model.norm.weight":
        return "output_norm.weight"
    if key == "lm_head.weight":
        return "output.weight"
    _, _, layer, rest = key.split(".", 3)
    return f"blk.{layer}.{LAYER[rest.removesuffix('.weight')]}.weight"


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder each head's rows from halves to pairs, as llama.cpp rotates them."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
