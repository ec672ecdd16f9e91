"""Weights of a local Hugging Face folder (Llama, Qwen2 or Qwen3), fused and laid out for the forward pass."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open

from tandem.engine.model_folder import UnsupportedModel, read_config
from tandem.engine.torch.linear import LARGE, Linear
from tandem.engine.torch.norm import RMSNorm


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a model. Sizes in elements, context in tokens."""

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    context: int


@dataclass(frozen=True)
class Part:
    """Layers first .. end − 1 of a model (end None: up to its last), and whether its two ends come with them: the
    embedding before its first layer, norm and head after its last."""

    first: int = 0
    end: int | None = None
    ends: bool = True

    def holds(self, name: str, layers: int) -> bool:
        """Return whether to read a tensor of a model with `layers` layers; also true for unknown tensors."""
        if (layer := _LAYER.match(name)) and int(layer[1]) < layers:
            return self.first <= int(layer[1]) < (layers if self.end is None else self.end)
        return self.ends or name not in _ENDS


WHOLE = Part()
_LAYER = re.compile(r"layers\.(\d+)\.")
_ENDS = ("embed_tokens.weight", "norm.weight", "lm_head.weight")


Read = Callable[[], torch.Tensor]


class Tensors:
    """Tensors of a model's files, each read when it is asked for: a whole model never lies beside its weights.

    parameters: numbers in those that were read.
    """

    def __init__(
        self,
        source: str,
        read: dict[str, Read],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """source: name of the files for errors. read: maps a tensor of them into memory, by name."""
        self.parameters = 0
        self._source, self._read, self._device, self._dtype = source, read, device, dtype

    def __contains__(self, name: str) -> bool:
        return name in self._read

    def pop(self, name: str, shape: tuple[int, ...] = (), as_stored: bool = False) -> torch.Tensor:
        """Return a tensor, once. Raises UnsupportedModel if there is none, or not of this shape, if one is given.

        as_stored: on a CPU leave a large one in its file, in the file's precision.
        """
        if name not in self._read:
            raise UnsupportedModel(f"{self._source} has no tensor {name!r}")
        tensor = self._read.pop(name)()
        if shape and tensor.shape != shape:
            raise UnsupportedModel(
                f"{self._source}: {name} is {list(tensor.shape)}, where the model has {list(shape)}"
            )
        self.parameters += tensor.numel()
        if as_stored and self._device.type == "cpu" and tensor.numel() >= LARGE:
            return tensor
        return tensor.to(self._device, self._dtype)

    def check_read(self, needless: Sequence[str] = ()) -> None:
        """Raise UnsupportedModel if a tensor was not read, unless it is needless or can be computed: to leave out a
        bias, say, would make another model of it."""
        left = sorted(n for n in self._read if n not in needless and not n.endswith("rotary_emb.inv_freq"))
        if left:
            raise UnsupportedModel(
                f"{self._source} has tensors that this engine does not know: {', '.join(left[:4])}"
            )


@dataclass(frozen=True)
class FeedForward:
    """A layer's second half."""

    norm: RMSNorm
    gate_up: Linear  # hidden → 2 · ffn
    down: Linear  # ffn → hidden


@dataclass(frozen=True)
class Layer:
    """One decoder layer; an adapter ends with its attention. qkv yields query, key and value side by side in this
    order, and the rotary pairs of query and key lie next to each other (see `_interleave`).
    """

    attention_norm: RMSNorm
    qkv: Linear  # hidden → (heads + 2 kv_heads) · head_dim
    query_norm: RMSNorm | None  # of a head, Qwen3
    key_norm: RMSNorm | None
    output: Linear  # heads · head_dim → hidden
    feed_forward: FeedForward | None


@dataclass(frozen=True)
class Weights:
    """Weights of a model, or of the part that was read: `config.layers` are its own layers, and without the ends there
    is no embedding, norm or head."""

    config: ModelConfig
    dtype: torch.dtype
    embedding: torch.Tensor | None  # [vocab, hidden]; a large one on a CPU is the file's, mapped into memory
    layers: tuple[Layer, ...]
    norm: RMSNorm | None
    head: Linear | None  # hidden → vocab
    rotation: torch.Tensor  # complex64 [context, head_dim / 2]: e^(i · position · frequency)
    parameters: int  # numbers that were learnt

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        config = self.config
        return 2 * config.layers * config.kv_heads * config.head_dim * self.dtype.itemsize


def load(folder: Path, device: torch.device, dtype: torch.dtype, part: Part = WHOLE) -> Weights:
    """Read config.json of `folder`, and the tensors of `part` from its *.safetensors; raises UnsupportedModel with the
    reason."""
    raw = read_config(folder)
    config = shape(folder, raw)
    layers = range(config.layers)[part.first : part.end]
    with ExitStack() as stack:
        files = [
            stack.enter_context(safe_open(file, framework="pt"))
            for file in sorted(folder.glob("*.safetensors"))
        ]
        tensors = Tensors(
            str(folder),
            {
                short: partial(file.get_tensor, name)
                for file in files
                for name in file.keys()  # noqa: SIM118 - a safetensors handle, not a dict
                if part.holds(short := name.removeprefix("model."), config.layers)
            },
            device,
            dtype,
        )
        embedding = norm = head = None
        if part.ends:
            embedding = tensors.pop("embed_tokens.weight", as_stored=True)
            norm = RMSNorm(tensors.pop("norm.weight"), config.norm_eps)
            tied = raw.get("tie_word_embeddings", False)
            head = Linear(embedding.to(dtype) if tied else tensors.pop("lm_head.weight"))
        loaded = Weights(
            config=replace(config, layers=len(layers)),
            dtype=dtype,
            embedding=embedding,
            layers=tuple(_layer(tensors, f"layers.{i}.", config) for i in layers),
            norm=norm,
            head=head,
            rotation=_rotation(raw, config).to(device),
            parameters=tensors.parameters,
        )
        tensors.check_read(("lm_head.weight",))
    return loaded


def shape(folder: Path, raw: dict) -> ModelConfig:
    """Return the model's shape by the config.json of `folder`, as read; raises UnsupportedModel."""
    try:
        return _model_config(raw)
    except KeyError as missing:
        raise UnsupportedModel(f"config.json of {folder} has no {missing}") from None


def with_adapter(weights: Weights, file: Path) -> Weights:
    """Return the weights with a layer more, an attention block of the model's shape without a feed-forward network,
    whose tensors are those of a decoder layer's first half. Raises UnsupportedModel."""
    config = weights.config
    with safe_open(file, framework="pt") as f:
        names: dict[str, Read] = {name: partial(f.get_tensor, name) for name in f.keys()}  # noqa: SIM118 - no dict
        tensors = Tensors(str(file), names, weights.rotation.device, weights.dtype)
        adapter = _layer(tensors, "", config, feed_forward=False)
        tensors.check_read()
    return replace(
        weights,
        config=replace(config, layers=len(weights.layers) + 1),
        layers=(*weights.layers, adapter),
        parameters=weights.parameters + tensors.parameters,
    )


def _model_config(raw: dict) -> ModelConfig:
    return ModelConfig(
        vocab_size=raw["vocab_size"],
        hidden=raw["hidden_size"],
        layers=raw["num_hidden_layers"],
        heads=raw["num_attention_heads"],
        kv_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
        head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        norm_eps=raw["rms_norm_eps"],
        context=raw["max_position_embeddings"],
    )


def _layer(tensors: Tensors, prefix: str, config: ModelConfig, feed_forward: bool = True) -> Layer:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim

    def get(name: str, *shape: int) -> torch.Tensor:
        return tensors.pop(prefix + name, shape)

    def rotary(name: str, *shape: int) -> torch.Tensor:
        return _interleave(get(name, *shape), config.head_dim)

    def norm(weight: torch.Tensor) -> RMSNorm:
        return RMSNorm(weight, config.norm_eps)

    bias = None
    if prefix + "self_attn.q_proj.bias" in tensors:
        bias = torch.cat(
            [
                rotary("self_attn.q_proj.bias"),
                rotary("self_attn.k_proj.bias"),
                get("self_attn.v_proj.bias"),
            ]
        )
    normed = prefix + "self_attn.q_norm.weight" in tensors
    return Layer(
        attention_norm=norm(get("input_layernorm.weight")),
        qkv=Linear(
            torch.cat(
                [
                    rotary("self_attn.q_proj.weight", queries, config.hidden),
                    rotary("self_attn.k_proj.weight", keys, config.hidden),
                    get("self_attn.v_proj.weight", keys, config.hidden),
                ]
            ),
            bias,
        ),
        query_norm=norm(rotary("self_attn.q_norm.weight")) if normed else None,
        key_norm=norm(rotary("self_attn.k_norm.weight")) if normed else None,
        output=Linear(get("self_attn.o_proj.weight", config.hidden, queries)),
        feed_forward=FeedForward(
            norm=norm(get("post_attention_layernorm.weight")),
            gate_up=Linear(torch.cat([get("mlp.gate_proj.weight"), get("mlp.up_proj.weight")])),
            down=Linear(get("mlp.down_proj.weight")),
        )
        if feed_forward
        else None,
    )


def _interleave(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder each head's rows from (all first halves, all second halves) to pairs, so that a rotation is
    one complex product. Query and key are reordered alike, which leaves their dot products unchanged."""
    paired = rows.view(-1, 2, head_dim // 2, *rows.shape[1:]).transpose(1, 2)
    return paired.reshape(rows.shape).contiguous()


def _rotation(raw: dict, config: ModelConfig) -> torch.Tensor:
    """Rotary position embedding as unit complex numbers, [context, head_dim / 2]."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    frequency = 1.0 / theta**exponent
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "llama3":
        frequency = _llama3_scaled(frequency, scaling)
    elif kind != "default":
        raise UnsupportedModel(f"rotary scaling {kind!r} is not supported; there are: default, llama3")
    # float32 products, as the models were trained with
    angle = torch.arange(config.context, dtype=torch.float32)[:, None] * frequency.float()[None, :]
    return torch.polar(torch.ones_like(angle), angle)


def _llama3_scaled(frequency: torch.Tensor, scaling: dict) -> torch.Tensor:
    """Llama 3.1's long-context scaling: low frequencies are divided by `factor`, high ones kept, those
    between interpolated."""
    old_context = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = old_context * frequency / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * frequency / scaling["factor"] + smooth * frequency
