"""Weights of a local Hugging Face folder, fused and laid out for the forward pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open

from tandem.engine.models.architectures import LayerShape, ModelConfig
from tandem.engine.models.model_folder import UnsupportedModel, shape
from tandem.engine.torch.layers.linear import LARGE, Linear
from tandem.engine.torch.layers.norm import RMSNorm
from tandem.engine.torch.layers.rope import rotary_dim, rotation


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
    output_norm: RMSNorm | None  # of what it adds, Gemma


@dataclass(frozen=True)
class Layer:
    """One decoder layer; an adapter ends with its attention. qkv yields query, key and value side by side in this
    order, and the rotary pairs of query and key lie next to each other (see `_interleave`).
    """

    shape: LayerShape
    attention_norm: RMSNorm
    qkv: Linear  # hidden → (heads + 2 kv_heads) · head_dim
    query_norm: RMSNorm | None  # of a head, Qwen3 and Gemma 3
    key_norm: RMSNorm | None
    output: Linear  # heads · head_dim → hidden
    output_norm: RMSNorm | None  # of what attention adds, Gemma
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
    rotations: tuple[torch.Tensor, ...]  # of each rotary embedding, see `rope.rotation`
    parameters: int  # numbers that were learnt

    @property
    def device(self) -> torch.device:
        return self.rotations[0].device

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        config = self.config
        return 2 * config.layers * config.kv_heads * config.head_dim * self.dtype.itemsize


def load(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    part: Part = WHOLE,
    longest: int | None = None,
) -> Weights:
    """Read config.json of `folder`, and the tensors of `part` from its *.safetensors; raises UnsupportedModel with the
    reason.

    longest: tokens of a sequence at most; None: the model's context.
    """
    config = shape(folder)
    positions = min(longest or config.context, config.context)
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
            norm = _norm(config, tensors.pop("norm.weight"))
            head = Linear(embedding.to(dtype) if config.tied else tensors.pop("lm_head.weight"))
        loaded = Weights(
            config=replace(config, layers=len(layers)),
            dtype=dtype,
            embedding=embedding,
            layers=tuple(_layer(tensors, f"layers.{i}.", config, config.layer_shapes[i]) for i in layers),
            norm=norm,
            head=head,
            rotations=tuple(
                rotation(rope, config.head_dim, config.context, positions).to(device) for rope in config.ropes
            ),
            parameters=tensors.parameters,
        )
        tensors.check_read(("lm_head.weight",))
    return loaded


def check_adaptable(config: ModelConfig) -> None:
    """Raise UnsupportedModel if no adapter drafts for a model of this shape."""
    if {*config.layer_shapes} != {LayerShape()} or config.architecture.output_norms is not None:
        raise UnsupportedModel(
            "an adapter drafts only for models whose layers are alike, without sliding windows, further norms, or "
            "layers without a rotary embedding"
        )


def with_adapter(weights: Weights, file: Path) -> Weights:
    """Return the weights with a layer more, an attention block of the model's shape without a feed-forward network,
    whose tensors are those of a decoder layer's first half. Raises UnsupportedModel."""
    config = weights.config
    check_adaptable(config)
    with safe_open(file, framework="pt") as f:
        names: dict[str, Read] = {name: partial(f.get_tensor, name) for name in f.keys()}  # noqa: SIM118 - no dict
        tensors = Tensors(str(file), names, weights.device, weights.dtype)
        adapter = _layer(tensors, "", config, LayerShape(), feed_forward=False)
        tensors.check_read()
    return replace(
        weights,
        config=replace(config, layers=len(weights.layers) + 1),
        layers=(*weights.layers, adapter),
        parameters=weights.parameters + tensors.parameters,
    )


def _layer(
    tensors: Tensors, prefix: str, config: ModelConfig, shape: LayerShape, feed_forward: bool = True
) -> Layer:
    names, head_dim = config.architecture, config.head_dim
    queries, keys = config.heads * head_dim, config.kv_heads * head_dim
    rotary = rotary_dim(config.ropes[shape.rope or 0], head_dim)

    def joined(projections: Sequence[str], rows: Sequence[int], kind: str, *columns: int) -> torch.Tensor:
        """The projections' rows one below the other, whether the file has them so or apart."""
        rows = rows if len(projections) > 1 else [sum(rows)]
        parts = [
            tensors.pop(f"{prefix}{name}.{kind}", (count, *columns))
            for name, count in zip(projections, rows, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def qkv(kind: str, *columns: int) -> torch.Tensor:
        rows = joined(names.qkv, (queries, keys, keys), kind, *columns)
        return torch.cat([_interleave(rows[: queries + keys], head_dim, rotary), rows[queries + keys :]])

    def projection(name: str, *size: int) -> Linear:
        return Linear(tensors.pop(f"{prefix}{name}.weight", size))

    def head_norm(name: str) -> RMSNorm | None:
        if (whole := f"{prefix}self_attn.{name}.weight") not in tensors:
            return None
        return _norm(config, _interleave(tensors.pop(whole, (head_dim,)), head_dim, rotary))

    def norm(name: str) -> RMSNorm:
        return _norm(config, tensors.pop(f"{prefix}{name}.weight", (config.hidden,)))

    second = None
    if feed_forward:
        second = FeedForward(
            norm=norm(names.feed_forward_norm),
            gate_up=Linear(joined(names.gate_up, (config.ffn, config.ffn), "weight", config.hidden)),
            down=projection("mlp.down_proj", config.hidden, config.ffn),
            output_norm=None if names.output_norms is None else norm(names.output_norms[1]),
        )
    return Layer(
        shape=shape,
        attention_norm=norm("input_layernorm"),
        qkv=Linear(
            qkv("weight", config.hidden),
            qkv("bias") if f"{prefix}{names.qkv[0]}.bias" in tensors else None,
        ),
        query_norm=head_norm("q_norm"),
        key_norm=head_norm("k_norm"),
        output=projection("self_attn.o_proj", config.hidden, queries),
        output_norm=None if names.output_norms is None else norm(names.output_norms[0]),
        feed_forward=second,
    )


def _norm(config: ModelConfig, weight: torch.Tensor) -> RMSNorm:
    # not in 16 bits, in which 1 + w would lose most of w
    return RMSNorm(weight.float() + 1 if config.architecture.offset_norms else weight, config.norm_eps)


def _interleave(rows: torch.Tensor, head_dim: int, rotary: int) -> torch.Tensor:
    """Reorder the first `rotary` of each head's rows from (all first halves, all second halves) to pairs, so that a
    rotation is one complex product. Query and key are reordered alike, which leaves their dot products unchanged."""
    heads = rows.view(-1, head_dim, *rows.shape[1:])
    turned, others = heads[:, :rotary], heads[:, rotary:]
    paired = turned.unflatten(1, (2, rotary // 2)).transpose(1, 2).flatten(1, 2)
    return torch.cat([paired, others], dim=1).view(rows.shape)
