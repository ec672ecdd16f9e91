"""The forward pass of a Llama-family model over a ragged batch with a paged KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from engine.weights import Layer, ModelConfig, Weights


class KVPool:
    """KV tensors of all layers: per layer [num_blocks, block_size · 2 · kv_heads · head_dim], a token's key
    heads followed by its value heads, so that one gather fetches both."""

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.block_size = block_size
        self.token_shape = (2 * config.kv_heads, config.head_dim)
        width = block_size * 2 * config.kv_heads * config.head_dim
        self.layers = [
            torch.zeros(num_blocks, width, device=device, dtype=dtype) for _ in range(config.layers)
        ]

    def copy_block(self, source: int, target: int) -> None:
        for layer in self.layers:
            layer[target] = layer[source]


@dataclass(frozen=True, slots=True)
class Piece:
    """One sequence's part of a step: `ids` at positions start .. start + len(ids) − 1, KV blocks `blocks`
    (covering all positions up to the last), and how many of the last positions want logits."""

    ids: Sequence[int]
    start: int
    blocks: Sequence[int]
    logits: int


@dataclass(frozen=True)
class Group:
    """Sequences whose attention runs in one call: `count` sequences padded to `width` queries each."""

    count: int
    width: int
    rows: torch.Tensor | None  # [count · width] rows of the batch, padding repeats a row; None: all, in order
    tables: torch.Tensor | slice  # [count · blocks] block numbers, padded with 0; a run needs no copy
    mask: torch.Tensor  # [count, 1, width, blocks · block_size], 0 or −inf


@dataclass(frozen=True)
class Batch:
    """A ragged batch as tensors. T = positions of all pieces together."""

    ids: torch.Tensor  # [T]
    rotation: torch.Tensor  # complex [T, 1, head_dim / 2], of the rows' positions
    slots: torch.Tensor  # [T] where the new keys and values go
    groups: tuple[Group, ...]
    back: torch.Tensor | None  # [T] rows of the groups' outputs in batch order; None: already so
    logit_rows: torch.Tensor | None  # rows that want logits; None: all


class Model:
    """Embed → decoder layers → head, the steps a split model cuts between."""

    def __init__(self, weights: Weights) -> None:
        self.config, self.weights = weights.config, weights
        self.device, self.dtype = weights.embedding.device, weights.embedding.dtype
        self._query_width = self.config.heads * self.config.head_dim

    def batch(self, pieces: Sequence[Piece], block_size: int) -> Batch:
        """Lay out the pieces; their order is the batch's row order."""
        counts = np.fromiter((len(p.ids) for p in pieces), np.int64, len(pieces))
        starts = np.fromiter((p.start for p in pieces), np.int64, len(pieces))
        first_rows = np.cumsum(counts) - counts
        total = int(counts.sum())
        positions = np.arange(total) - np.repeat(first_rows - starts, counts)
        blocks = np.zeros((len(pieces), max(len(p.blocks) for p in pieces)), np.int64)
        for row, piece in zip(blocks, pieces, strict=True):
            row[: len(piece.blocks)] = piece.blocks
        owner = np.repeat(np.arange(len(pieces)), counts)
        slots = blocks[owner, positions // block_size] * block_size + positions % block_size
        ids = np.fromiter((i for p in pieces for i in p.ids), np.int64, total)

        members: dict[tuple[int, int], list[int]] = {}
        for i, (n, start) in enumerate(zip(counts.tolist(), starts.tolist(), strict=True)):
            members.setdefault(_shape_class(n, start + n), []).append(i)
        groups: list[Group] = []
        order: list[np.ndarray] = []  # for each group: the padded row that holds each of its real rows
        offset = 0
        for chosen in members.values():
            group, padded_rows, real_rows = self._group(
                np.array(chosen), counts, starts, first_rows, blocks, block_size
            )
            groups.append(group)
            order.append(np.stack([real_rows, padded_rows + offset]))
            offset += group.count * group.width
        back = None
        if len(groups) > 1 or groups[0].rows is not None:
            real, padded = np.concatenate(order, axis=1)
            back = self._tensor(padded[np.argsort(real)])
        wanted = np.fromiter((p.logits for p in pieces), np.int64, len(pieces))
        logit_rows = None
        if int(wanted.sum()) != total:
            ends = first_rows + counts
            logit_rows = self._tensor(
                np.arange(int(wanted.sum())) + np.repeat(ends - np.cumsum(wanted), wanted)
            )
        return Batch(
            ids=self._tensor(ids),
            rotation=self.weights.rotation.index_select(0, self._tensor(positions))[:, None],
            slots=self._tensor(slots),
            groups=tuple(groups),
            back=back,
            logit_rows=logit_rows,
        )

    def forward(self, batch: Batch, pool: KVPool) -> torch.Tensor:
        """Logits [rows that want them, vocab] in float32; the pool gets the new keys and values."""
        hidden = self.run_layers(self.embed(batch.ids), batch, pool)
        if batch.logit_rows is not None:
            hidden = hidden.index_select(0, batch.logit_rows)
        return self.head(hidden)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """[T] → [T, hidden]"""
        return F.embedding(ids, self.weights.embedding)

    def run_layers(
        self, hidden: torch.Tensor, batch: Batch, pool: KVPool, first: int = 0, last: int | None = None
    ) -> torch.Tensor:
        """Layers first .. last − 1 over [T, hidden]."""
        for layer, kv in zip(self.weights.layers[first:last], pool.layers[first:last], strict=True):
            hidden = self._layer(layer, hidden, batch, kv, pool.token_shape)
        return hidden

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] → logits [R, vocab] in float32."""
        normed = F.rms_norm(hidden, hidden.shape[-1:], self.weights.norm, self.config.norm_eps)
        return torch.mm(normed, self.weights.head).float()

    def _layer(
        self, w: Layer, hidden: torch.Tensor, batch: Batch, kv: torch.Tensor, token_shape: tuple[int, int]
    ) -> torch.Tensor:
        config, shape = self.config, hidden.shape[-1:]
        normed = F.rms_norm(hidden, shape, w.attention_norm, config.norm_eps)
        qkv = torch.mm(normed, w.qkv) if w.qkv_bias is None else torch.addmm(w.qkv_bias, normed, w.qkv)
        qkv = self._rotate(w, qkv, batch.rotation)
        kv.view(-1, *token_shape).index_copy_(0, batch.slots, qkv[:, config.heads :])
        mixed = self._attention(qkv[:, : config.heads], batch, kv)
        hidden = torch.addmm(hidden, mixed, w.output)
        normed = F.rms_norm(hidden, shape, w.mlp_norm, config.norm_eps)
        gate, up = torch.mm(normed, w.gate_up).chunk(2, dim=-1)
        return torch.addmm(hidden, F.silu(gate).mul_(up), w.down)

    def _rotate(self, w: Layer, qkv: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """[T, (heads + 2 kv_heads) · head_dim] → [T, heads + 2 kv_heads, head_dim], query and key turned by
        their positions."""
        config = self.config
        qkv = qkv.view(qkv.shape[0], -1, config.head_dim)
        if w.query_norm is not None and w.key_norm is not None:
            query, key, value = qkv.split((config.heads, config.kv_heads, config.kv_heads), dim=1)
            query = F.rms_norm(query, (config.head_dim,), w.query_norm, config.norm_eps)
            key = F.rms_norm(key, (config.head_dim,), w.key_norm, config.norm_eps)
            qkv = torch.cat((query, key, value), dim=1)
        pairs = torch.view_as_complex(qkv.float().view(*qkv.shape[:2], -1, 2))
        pairs[:, : config.heads + config.kv_heads].mul_(rotation)
        return torch.view_as_real(pairs).view(qkv.shape).to(self.dtype)

    def _attention(self, query: torch.Tensor, batch: Batch, kv: torch.Tensor) -> torch.Tensor:
        """Query [T, heads, head_dim] against the cached keys and values: [T, heads · head_dim]."""
        config, outputs = self.config, []
        for group in batch.groups:
            tables = group.tables
            blocks = kv[tables] if isinstance(tables, slice) else kv.index_select(0, tables)
            cached = blocks.view(group.count, -1, 2, config.kv_heads, config.head_dim)
            key, value = cached.permute(2, 0, 3, 1, 4).unbind(0)  # [count, kv_heads, length, head_dim]
            q = query if group.rows is None else query.index_select(0, group.rows)
            q = q.view(group.count, group.width, config.heads, config.head_dim).transpose(1, 2)
            mixed = F.scaled_dot_product_attention(q, key, value, attn_mask=group.mask, enable_gqa=True)
            outputs.append(mixed.transpose(1, 2).reshape(-1, self._query_width))
        if batch.back is None:
            return outputs[0]
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return joined.index_select(0, batch.back)

    def _group(
        self,
        chosen: np.ndarray,
        counts: np.ndarray,
        starts: np.ndarray,
        first_rows: np.ndarray,
        blocks: np.ndarray,
        block_size: int,
    ) -> tuple[Group, np.ndarray, np.ndarray]:
        """The group of the pieces `chosen`, and for its real rows their numbers in the padded output and
        in the batch."""
        n = counts[chosen]
        width = int(n.max())
        column = np.arange(width)
        inside = np.minimum(column[None, :], n[:, None] - 1)  # padding repeats the last query
        rows = first_rows[chosen, None] + inside
        length = int((starts[chosen] + n).max())
        tables = blocks[chosen, : -(-length // block_size)]
        visible = np.arange(tables.shape[1] * block_size) <= (starts[chosen, None] + inside)[:, :, None]
        mask = torch.zeros(visible.shape, dtype=torch.float32)
        mask.masked_fill_(torch.from_numpy(~visible), float("-inf"))
        real = column[None, :] < n[:, None]
        in_order = len(chosen) == len(counts) and int(n.min()) == width
        group = Group(
            count=len(chosen),
            width=width,
            rows=None if in_order else self._tensor(rows.reshape(-1)),
            tables=self._tables(np.ascontiguousarray(tables).reshape(-1)),
            mask=mask[:, None].to(self.device, self.dtype),
        )
        return group, np.flatnonzero(real), rows[real]

    def _tables(self, blocks: np.ndarray) -> torch.Tensor | slice:
        if (np.diff(blocks) == 1).all():
            return slice(int(blocks[0]), int(blocks[-1]) + 1)
        return self._tensor(blocks)

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)


def _shape_class(queries: int, length: int) -> tuple[int, int]:
    """Pieces of one class share an attention call: alike enough that padding costs less than another call."""
    return (0 if queries == 1 else 1 if queries <= 16 else queries.bit_length()), (length // 512).bit_length()
