"""Architectures that the torch engine runs: their tensors, and their shape by config.json. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Raw = Mapping[str, Any]
"""Contents of config.json."""
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


class UnsupportedModel(ValueError):
    """A folder holds no model, or a model that this engine cannot run."""


@dataclass(frozen=True)
class LayerShape:
    """Attention of a layer.

    rope: number of the model's rotary embedding that turns queries and keys; None: none does.
    sliding: whether a position sees only the last `ModelConfig.window` positions, itself included.
    """

    rope: int | None = 0
    sliding: bool = False


@dataclass(frozen=True)
class Architecture:
    """Names of a layer's tensors, and how config.json is to be read.

    qkv: projections to query, key and value, in one matrix or in three.
    gate_up: projections of the feed-forward network, in one matrix or in two.
    feed_forward_norm: norm before the feed-forward network.
    output_norms: norms of what attention and feed-forward network add; None: there are none.
    offset_norms: whether norms are stored less one.
    scaled_embedding: whether embeddings are multiplied by the square root of their size.
    defaults: values of keys that config.json may leave out.
    window_switch: key that must be true for the window to count; None: it always does.
    slides: whether layer i slides, unless `layer_types` says so; None: no layer does.
    turns: whether layer i has a rotary embedding.
    """

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    feed_forward_norm: str = "post_attention_layernorm"
    output_norms: tuple[str, str] | None = None
    offset_norms: bool = False
    scaled_embedding: bool = False
    defaults: Raw = field(default_factory=dict)
    window_switch: str | None = None
    slides: Callable[[Raw, int], bool] | None = None
    turns: Callable[[Raw, int], bool] = lambda raw, i: True


def _turns_smollm3(raw: Raw, i: int) -> bool:
    if (given := raw.get("no_rope_layers")) is not None:
        return bool(given[i])
    return bool((i + 1) % raw["no_rope_layer_interval"])


def _gemma(slides: Callable[[Raw, int], bool], defaults: Raw) -> Architecture:
    return Architecture(
        feed_forward_norm="pre_feedforward_layernorm",
        output_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        offset_norms=True,
        scaled_embedding=True,
        defaults={
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "tie_word_embeddings": True,
            **defaults,
        },
        slides=slides,
    )


_QWEN = Architecture(
    defaults={"sliding_window": 4096, "max_window_layers": 28},
    window_switch="use_sliding_window",
    slides=lambda raw, i: i >= raw["max_window_layers"],
)

ARCHITECTURES = {
    "LlamaForCausalLM": Architecture(),
    "MistralForCausalLM": Architecture(defaults={"sliding_window": 4096}, slides=lambda raw, i: True),
    "Qwen2ForCausalLM": _QWEN,
    "Qwen3ForCausalLM": _QWEN,
    "SmolLM3ForCausalLM": Architecture(
        defaults={"rope_theta": 2e6, "no_rope_layer_interval": 4, "tie_word_embeddings": True},
        window_switch="use_sliding_window",
        slides=lambda raw, i: not _turns_smollm3(raw, i),
        turns=_turns_smollm3,
    ),
    "Gemma2ForCausalLM": _gemma(
        lambda raw, i: i % 2 == 0,
        {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "Gemma3ForCausalLM": _gemma(
        lambda raw, i: bool((i + 1) % raw["sliding_window_pattern"]),
        {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6},
    ),
    "Phi3ForCausalLM": Architecture(
        qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",), slides=lambda raw, i: True
    ),
}


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a model. Sizes in elements, context and window in tokens.

    tied: whether the head is the embedding.
    layer_shapes: of its layers, first to last.
    ropes: settings of its rotary embeddings, as `rope_parameters` in config.json, each with its base.
    query_scale: factor of attention's scores; None: 1 / √head_dim.
    attention_cap, logit_cap: c in c · tanh(x / c), of attention's scores and of logits; None: no such limit.
    """

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    norm_eps: float
    context: int
    architecture: Architecture = ARCHITECTURES["LlamaForCausalLM"]
    tied: bool = False
    layer_shapes: tuple[LayerShape, ...] = ()
    ropes: tuple[Raw, ...] = ()
    window: int | None = None
    activation: str = "silu"
    query_scale: float | None = None
    attention_cap: float | None = None
    logit_cap: float | None = None


def read_shape(folder: Path, raw: Raw) -> ModelConfig:
    """Return the shape of a folder's model by its config.json. Raise UnsupportedModel, with the reason, if the torch
    engine cannot run it."""
    name = (raw.get("architectures") or ["?"])[0]
    if (architecture := ARCHITECTURES.get(name)) is None:
        raise UnsupportedModel(
            f"{folder} is a {name}; the torch engine runs {', '.join(ARCHITECTURES)}. vLLM may run it (kind: vllm, "
            "make vllm), and so may llama.cpp, from a GGUF file of it (kind: llamacpp, make llamacpp)"
        )
    if raw.get("quantization_config"):
        raise UnsupportedModel(
            f"{folder} has quantised weights, which the torch engine does not run: vLLM may (kind: vllm)"
        )
    try:
        config = _shape({**architecture.defaults, **raw}, architecture)
    except KeyError as missing:
        raise UnsupportedModel(f"config.json of {folder} has no {missing}") from None
    if config.activation not in ACTIVATIONS:
        raise UnsupportedModel(
            f"{folder} has the activation {config.activation!r}; the torch engine has {', '.join(ACTIVATIONS)}"
        )
    for rope in config.ropes:
        if (kind := rope["rope_type"]) not in ROPE_KINDS:
            raise UnsupportedModel(
                f"{folder} has a rotary embedding of kind {kind!r}; the torch engine has {', '.join(ROPE_KINDS)}"
            )
    if raw.get("use_bidirectional_attention"):
        raise UnsupportedModel(f"{folder} has bidirectional attention, so it does not write text")
    return config


def _shape(raw: Raw, architecture: Architecture) -> ModelConfig:
    heads, layers, window = raw["num_attention_heads"], raw["num_hidden_layers"], raw.get("sliding_window")
    if architecture.slides is None or not raw.get(architecture.window_switch or "", True):
        window = None
    ropes = _ropes(raw)
    shapes = []
    for i in range(layers):
        sliding = window is not None and _slides(raw, architecture, i)
        shapes.append(LayerShape(len(ropes) - 1 if sliding else 0, sliding))
        if not architecture.turns(raw, i):
            shapes[i] = LayerShape(None, sliding)
    scalar = raw.get("query_pre_attn_scalar")
    return ModelConfig(
        vocab_size=raw["vocab_size"],
        hidden=raw["hidden_size"],
        layers=layers,
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        ffn=raw["intermediate_size"],
        norm_eps=raw["rms_norm_eps"],
        context=raw["max_position_embeddings"],
        architecture=architecture,
        tied=raw.get("tie_word_embeddings", False),
        layer_shapes=tuple(shapes),
        ropes=ropes,
        window=window,
        activation=raw.get("hidden_activation") or raw.get("hidden_act", "silu"),
        query_scale=None if scalar is None else scalar**-0.5,
        attention_cap=raw.get("attn_logit_softcapping"),
        logit_cap=raw.get("final_logit_softcapping"),
    )


def _slides(raw: Raw, architecture: Architecture, i: int) -> bool:
    if (types := raw.get("layer_types")) is not None:
        return bool(types[i] == "sliding_attention")
    return architecture.slides is not None and architecture.slides(raw, i)


def _ropes(raw: Raw) -> tuple[Raw, ...]:
    """Return complete settings of the rotary embeddings: one of all layers, or one of those that see everything and one
    of those that slide."""
    said = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    nested, local = "full_attention" in said, raw.get("rope_local_base_freq")
    whole = _rope(raw, (said["full_attention"] or {}) if nested else said)
    if not nested and local is None:
        return (whole,)
    own = said.get("sliding_attention") or {}
    return whole, _rope(raw if local is None else {**raw, "rope_theta": local}, own)


def _rope(raw: Raw, said: Raw) -> Raw:
    """Return the settings with what config.json says elsewhere, or leaves out."""
    context = raw.get("original_max_position_embeddings") or raw["max_position_embeddings"]
    outside = {
        "rope_theta": raw.get("rope_theta") or 10_000.0,
        "rope_type": "longrope" if "long_factor" in said else said.get("type", "default"),
        "partial_rotary_factor": raw.get("partial_rotary_factor") or 1.0,
        "original_max_position_embeddings": context,
    }
    given = {key: value for key, value in said.items() if value is not None}
    if raw.get("original_max_position_embeddings"):
        given["original_max_position_embeddings"] = context
    return {**outside, **given}
