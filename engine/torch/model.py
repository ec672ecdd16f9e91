"""The forward pass of a decoder model over a ragged batch with a paged KV cache."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F

from tandem.engine.models.architectures import ModelConfig
from tandem.engine.torch.attention.batch import Batch, BatchPiece, lay_out
from tandem.engine.torch.attention.layout import layout
from tandem.engine.torch.layers.linear import Linear
from tandem.engine.torch.layers.norm import RMSNorm
from tandem.engine.torch.weights import Layer, Weights

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


class KVPool:
    """Keys and values. A token's key heads are followed by its value heads, so that one gather fetches both.

    blocks: [layers, num_blocks, block_size · 2 · kv_heads · head_dim].
    layers: the same, by layer.
    slots: by layer, [num_blocks · block_size, 2 · kv_heads, head_dim].
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.block_size = block_size
        width = block_size * 2 * config.kv_heads * config.head_dim
        self.blocks = _zeros((config.layers, num_blocks, width), device, dtype)
        self.layers = list(self.blocks.unbind())
        self.slots = [layer.view(-1, 2 * config.kv_heads, config.head_dim) for layer in self.layers]

    def copy_block(self, source: int, target: int) -> None:
        self.blocks[:, target] = self.blocks[:, source]


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros of this shape. On a CPU they take memory once they are written to: an idle cache takes none."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


class Model:
    """Embed → decoder layers → head."""

    def __init__(self, weights: Weights) -> None:
        self.config, self.weights = weights.config, weights
        self.device, self.dtype = weights.device, weights.dtype
        self._activate = ACTIVATIONS[self.config.activation]
        self._attention = layout(self.config, self.device, self.dtype)
        self._embedding_scale = None
        if self.config.architecture.scaled_embedding:  # in the weights' own precision, as it was in training
            self._embedding_scale = torch.tensor(self.config.hidden**0.5, dtype=self.dtype).item()

    def batch(self, pieces: Sequence[BatchPiece], pool: KVPool) -> Batch:
        """Lay out the pieces; their order is the batch's row order."""
        return lay_out(pieces, pool.block_size, self.device, self._attention(pieces, pool.block_size))

    def forward(self, batch: Batch, pool: KVPool) -> torch.Tensor:
        """Logits [rows that want them, vocab] in float32; the pool gets the new keys and values."""
        hidden = self.decode(self.embed(batch.inputs), batch, pool)
        if batch.logit_rows is not None:
            hidden = hidden.index_select(0, batch.logit_rows)
        return self.head(hidden)

    def decode(
        self, hidden: torch.Tensor, batch: Batch, pool: KVPool, first: int = 0, end: int | None = None
    ) -> torch.Tensor:
        """Compute the layers first .. end − 1: [T, hidden] → the same shape."""
        rotations = [
            rotation.index_select(0, batch.positions)[:, None] for rotation in self.weights.rotations
        ]
        layers = list(zip(self.weights.layers, pool.layers, pool.slots, strict=True))
        for w, kv, slots in layers[first:end]:
            hidden = self._layer(w, hidden, rotations, batch, kv, slots)
        return hidden

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """[T] → [T, hidden]"""
        assert self.weights.embedding is not None
        embedded = F.embedding(ids, self.weights.embedding).to(self.dtype)
        return embedded if self._embedding_scale is None else embedded.mul_(self._embedding_scale)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] → logits [R, vocab] in float32."""
        assert self.weights.head is not None
        assert self.weights.norm is not None
        logits = self.weights.head(self.weights.norm(hidden)).float()
        cap = self.config.logit_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _layer(
        self,
        w: Layer,
        hidden: torch.Tensor,
        rotations: Sequence[torch.Tensor],
        batch: Batch,
        kv: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        heads, shape = self.config.heads, w.shape
        rotation = None if shape.rope is None else rotations[shape.rope]
        qkv = self._rotate(w, w.qkv(w.attention_norm(hidden)), rotation)
        slots.index_copy_(0, batch.slots, qkv[:, heads:])
        mixed = batch.attention(qkv[:, :heads], kv, shape.sliding)
        hidden = _added(w.output, w.output_norm, mixed, hidden)
        if (ffn := w.feed_forward) is None:
            return hidden
        gate, up = ffn.gate_up(ffn.norm(hidden)).chunk(2, dim=-1)
        return _added(ffn.down, ffn.output_norm, self._activate(gate).mul_(up), hidden)

    def _rotate(self, w: Layer, qkv: torch.Tensor, rotation: torch.Tensor | None) -> torch.Tensor:
        """[T, (heads + 2 kv_heads) · head_dim] → [T, heads + 2 kv_heads, head_dim], query and key turned by
        their positions: `rotation`, complex [T, 1, head_dim / 2]; None: not turned."""
        config = self.config
        qkv = qkv.view(qkv.shape[0], -1, config.head_dim)
        if w.query_norm is not None and w.key_norm is not None:
            query, key, value = qkv.split((config.heads, config.kv_heads, config.kv_heads), dim=1)
            qkv = torch.cat((w.query_norm(query), w.key_norm(key), value), dim=1)
        if rotation is None:
            return qkv
        turned = qkv[:, : config.heads + config.kv_heads]
        if self.dtype is torch.float32:
            turned.view(torch.complex64).mul_(rotation)
        else:
            turned.copy_(turned.float().view(torch.complex64).mul_(rotation).view(torch.float32))
        return qkv


def _added(projection: Linear, norm: RMSNorm | None, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    if norm is None:
        return projection(x, residual=residual)
    return residual + norm(projection(x))
