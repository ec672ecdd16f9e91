"""Tiny random Llamas without transformers: a folder written by hand, and a naive forward pass over it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import save_file

from tandem.engine.torch import weights
from tandem.engine.torch.model import Model
from tests.engine.torch.place import DEVICE

VOCAB, EOS = 31, 2
_HIDDEN, _HEADS, _KV_HEADS, _HEAD_DIM, _FFN, _LAYERS, _EPS = 16, 2, 1, 8, 24, 2, 1e-5


@dataclass(frozen=True, eq=False)
class TinyModel:
    """The engine's model, and the tensors it was made of for the naive reference."""

    model: Model
    tensors: dict[str, torch.Tensor]

    @lru_cache(maxsize=20_000)  # noqa: B019 - a few models a test run
    def logits(self, tokens: tuple[int, ...]) -> torch.Tensor:
        """Logits [vocab] after `tokens`, all computed anew."""
        return _forward(self.tensors, tokens)[-1]


def tensors(seed: int, noise: float = 0.0) -> dict[str, torch.Tensor]:
    """Random weights; with `noise` those of a model that resembles the one of this seed."""
    g = torch.Generator().manual_seed(seed)
    other = torch.Generator().manual_seed(seed + 1)

    def normal(*shape: int, scale: float = 0.35) -> torch.Tensor:
        clean = torch.randn(*shape, generator=g)
        return (clean + noise * torch.randn(*shape, generator=other)) * scale

    made = {"model.embed_tokens.weight": normal(VOCAB, _HIDDEN, scale=1.0)}
    for i in range(_LAYERS):
        layer = {
            "self_attn.q_proj": (_HEADS * _HEAD_DIM, _HIDDEN),
            "self_attn.k_proj": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
            "self_attn.v_proj": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
            "self_attn.o_proj": (_HIDDEN, _HEADS * _HEAD_DIM),
            "mlp.gate_proj": (_FFN, _HIDDEN),
            "mlp.up_proj": (_FFN, _HIDDEN),
            "mlp.down_proj": (_HIDDEN, _FFN),
        }
        made |= {f"model.layers.{i}.{name}.weight": normal(*shape) for name, shape in layer.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            made[f"model.layers.{i}.{norm}.weight"] = 1.0 + normal(_HIDDEN, scale=0.1)
    made["model.norm.weight"] = 1.0 + normal(_HIDDEN, scale=0.1)
    return made


def config(context: int = 256) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": _HIDDEN,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "intermediate_size": _FFN,
        "rms_norm_eps": _EPS,
        "max_position_embeddings": context,
        "tie_word_embeddings": True,
        "eos_token_id": EOS,
    }


def write(folder: Path, seed: int, context: int = 256, noise: float = 0.0) -> dict[str, torch.Tensor]:
    """A model folder in the Hugging Face layout; returns its tensors."""
    made = tensors(seed, noise)
    (folder / "config.json").write_text(json.dumps(config(context)))
    save_file(made, folder / "model.safetensors")
    return made


def make(folder: Path, seed: int, context: int = 256, noise: float = 0.0) -> TinyModel:
    made = write(folder, seed, context, noise)
    return TinyModel(Model(weights.load(folder, DEVICE, torch.float32)), made)


def _forward(w: dict[str, torch.Tensor], tokens: tuple[int, ...]) -> torch.Tensor:
    """Logits [tokens, vocab] by the definition of Llama: no cache, no fusing, heads one by one."""
    x = w["model.embed_tokens.weight"][list(tokens)]
    n = len(tokens)
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    for i in range(_LAYERS):

        def of(name: str, i: int = i) -> torch.Tensor:
            return w[f"model.layers.{i}.{name}.weight"]

        y = _norm(x, of("input_layernorm"))
        q = _rotated((y @ of("self_attn.q_proj").T).view(n, _HEADS, _HEAD_DIM))
        k = _rotated((y @ of("self_attn.k_proj").T).view(n, _KV_HEADS, _HEAD_DIM))
        v = (y @ of("self_attn.v_proj").T).view(n, _KV_HEADS, _HEAD_DIM)
        mixed = []
        for head in range(_HEADS):
            shared = head * _KV_HEADS // _HEADS
            scores = q[:, head] @ k[:, shared].T / math.sqrt(_HEAD_DIM)
            mixed.append(scores.masked_fill(future, -math.inf).softmax(-1) @ v[:, shared])
        x = x + torch.cat(mixed, dim=-1) @ of("self_attn.o_proj").T
        y = _norm(x, of("post_attention_layernorm"))
        gate, up = y @ of("mlp.gate_proj").T, y @ of("mlp.up_proj").T
        x = x + (gate * torch.sigmoid(gate) * up) @ of("mlp.down_proj").T
    return _norm(x, w["model.norm.weight"]) @ w["model.embed_tokens.weight"].T


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + _EPS) * weight


def _rotated(x: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, head_dim]; dimension i is paired with i + head_dim / 2."""
    half = _HEAD_DIM // 2
    frequency = 10000.0 ** (-torch.arange(half) * 2 / _HEAD_DIM)
    angle = (torch.arange(len(x))[:, None] * frequency)[:, None, :]
    first, second = x[..., :half], x[..., half:]
    return torch.cat(
        [
            first * angle.cos() - second * angle.sin(),
            second * angle.cos() + first * angle.sin(),
        ],
        dim=-1,
    )
