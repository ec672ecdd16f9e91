"""Tiny random models of each architecture, written as a Hugging Face folder by transformers itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

VOCAB = 97
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # wide enough that logits differ clearly
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2],
    "long_factor": [1.5, 2.0, 4.0],
}
_WINDOW = {"sliding_window": 8, "max_window_layers": 1, "use_sliding_window": True}
_GEMMA = {"sliding_window": 8, "head_dim": 16, "query_pre_attn_scalar": 24}
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SHAPE, tie_word_embeddings=True)),
    "llama-untied": lambda: LlamaForCausalLM(LlamaConfig(**_SHAPE, tie_word_embeddings=False)),
    "llama3-rope": lambda: LlamaForCausalLM(LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3)),
    "llama-head-dim": lambda: LlamaForCausalLM(LlamaConfig(**_SHAPE, head_dim=16)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_SHAPE, sliding_window=None)),
    "mistral-window": lambda: MistralForCausalLM(MistralConfig(**_SHAPE, sliding_window=8)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_SHAPE)),
    "qwen2-window": lambda: Qwen2ForCausalLM(Qwen2Config(**_SHAPE, **_WINDOW)),
    "qwen2-yarn": lambda: Qwen2ForCausalLM(Qwen2Config(**_SHAPE, rope_parameters=_YARN)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_SHAPE, head_dim=16)),
    "smollm3": lambda: SmolLM3ForCausalLM(
        SmolLM3Config(**_SHAPE, pad_token_id=0, no_rope_layer_interval=2, **_WINDOW)
    ),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**_SHAPE, **_GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0)
    ),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**_SHAPE, **_GEMMA, sliding_window_pattern=2)),  # type: ignore[call-arg]  # of a family's older settings
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**_SHAPE, pad_token_id=0, sliding_window=8)),
    "phi3-longrope": lambda: Phi3ForCausalLM(
        Phi3Config(**_SHAPE, pad_token_id=0, original_max_position_embeddings=16, rope_parameters=_LONGROPE)
    ),
}


ADAPTED = tuple(
    kind
    for kind in MODELS
    if kind not in ("smollm3", "gemma2", "gemma3", "phi3") and not kind.endswith("-window")
)
"""Models whose layers are alike and plain, for which an adapter drafts."""


def make(kind: str, folder: Path) -> PreTrainedModel:
    """A random model of the kind, saved in `folder`; its biases and norms are random as well."""
    torch.manual_seed(7)
    model = MODELS[kind]().eval()
    if kind == "gemma2":
        model.set_attn_implementation("eager")  # the others leave out its caps
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model
