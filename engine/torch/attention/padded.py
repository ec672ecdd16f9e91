"""Attention over gathered blocks and a mask, for any device and precision: sequences alike share a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby

import torch
import torch.nn.functional as F

from tandem.engine.models.architectures import ModelConfig
from tandem.engine.torch.attention.batch import BatchPiece

# Of keys and values that one attention call on a CPU gathers: they should still be in the core's cache (L2) when they
# are read. A batch's are many times as large, and memory is what bounds decoding.
GATHERED_BYTES = 2**21


@dataclass(frozen=True)
class Group:
    """Sequences whose attention runs in one call: `count` of them, padded to `width` queries each."""

    count: int
    width: int
    rows: slice | torch.Tensor  # its rows of the batch; a tensor [count · width] where padding repeats rows
    real: torch.Tensor | None  # which of the padded rows are no padding; None: all
    tables: slice | torch.Tensor  # [count · blocks] block numbers, padded with 0; a run needs no copy
    mask: torch.Tensor  # [count, 1, width, blocks · block_size], 0 or −inf
    near: torch.Tensor  # mask of layers with a sliding window


class PaddedLayout:
    """Lays out padded attention for one model."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.config, self._device, self._dtype = config, device, dtype
        self.attend = F.scaled_dot_product_attention
        if (cap := config.attention_cap) is not None:
            self.attend = partial(_capped_attention, cap)
        self._group_tokens: int | None = None
        if device.type == "cpu":
            self._group_tokens = GATHERED_BYTES // (2 * config.kv_heads * config.head_dim * dtype.itemsize)

    def __call__(self, pieces: Sequence[BatchPiece], block_size: int) -> PaddedAttention:
        return PaddedAttention(self, self.groups(pieces, block_size, self._group_tokens))

    def groups(self, pieces: Sequence[BatchPiece], block_size: int, group_tokens: int | None) -> list[Group]:
        """Return the groups, which follow one another; neighbours of one shape class share one, so sort by it.

        group_tokens: tokens of context, padding included, that a group of several has at most; None: any number.
        """
        groups: list[Group] = []
        first_row = 0
        for members in _grouped(pieces, block_size, group_tokens):
            groups.append(self._group(members, first_row, block_size))
            first_row += sum(len(p.ids) for p in members)
        return groups

    def _group(self, pieces: Sequence[BatchPiece], first_row: int, block_size: int) -> Group:
        """Return the group of these pieces, whose rows in the batch begin at `first_row`."""
        device, window = self._device, self.config.window
        counts = [len(p.ids) for p in pieces]
        width = max(counts)
        rows: slice | torch.Tensor = slice(first_row, first_row + sum(counts))
        real = None
        if min(counts) < width:  # padding repeats a sequence's last query
            ends = list(accumulate(counts, initial=first_row))[1:]
            padded = [
                min(end - n + j, end - 1) for n, end in zip(counts, ends, strict=True) for j in range(width)
            ]
            rows = torch.tensor(padded, device=device)
            real = torch.tensor(
                [i * width + j for i, n in enumerate(counts) for j in range(n)],
                dtype=torch.long,
                device=device,
            )
        blocks = -(-max(p.end for p in pieces) // block_size)
        table = [b for p in pieces for b in [*p.blocks[:blocks], *[0] * (blocks - len(p.blocks))]]
        run = table == list(range(table[0], table[0] + len(table)))
        last_seen = torch.tensor(
            [min(p.start + j, p.end - 1) for p in pieces for j in range(width)], device=device
        ).view(-1, 1, width, 1)
        positions = torch.arange(blocks * block_size, device=device)
        hidden = positions > last_seen
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=device).masked_fill_(hidden, float("-inf"))
        near = mask
        if window is not None and max(p.end for p in pieces) > window:
            near = mask.masked_fill(positions <= last_seen - window, float("-inf"))
        return Group(
            count=len(pieces),
            width=width,
            rows=rows,
            real=real,
            tables=slice(table[0], table[0] + len(table)) if run else torch.tensor(table, device=device),
            mask=mask,
            near=near,
        )


class PaddedAttention:
    """Attention of a batch, group by group."""

    def __init__(self, layout: PaddedLayout, groups: Sequence[Group]) -> None:
        self._layout, self.groups = layout, groups

    def __call__(self, query: torch.Tensor, kv: torch.Tensor, sliding: bool) -> torch.Tensor:
        config, outputs = self._layout.config, []
        for group in self.groups:
            cached = _rows(kv, group.tables).view(group.count, -1, 2, config.kv_heads, config.head_dim)
            key, value = cached.permute(2, 0, 3, 1, 4).unbind(0)  # [count, kv_heads, length, head_dim]
            q = _rows(query, group.rows)
            q = q.view(group.count, group.width, config.heads, config.head_dim).transpose(1, 2)
            mask = group.near if sliding else group.mask
            mixed = self._layout.attend(
                q, key, value, attn_mask=mask, scale=config.query_scale, enable_gqa=True
            )
            mixed = mixed.transpose(1, 2).reshape(-1, config.heads * config.head_dim)
            outputs.append(mixed if group.real is None else mixed.index_select(0, group.real))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def shape_class(piece: BatchPiece) -> tuple[int, int]:
    """Return a piece's class: those of one are alike enough that padding costs less than another call."""
    queries = len(piece.ids)
    width = 0 if queries == 1 else 1 if queries <= 16 else queries.bit_length()
    return width, (piece.end // 512).bit_length()


def _grouped(
    pieces: Sequence[BatchPiece], block_size: int, group_tokens: int | None
) -> Iterator[list[BatchPiece]]:
    """Neighbours of one shape class, as many together as may be."""
    for _, alike in groupby(pieces, key=shape_class):
        members: list[BatchPiece] = []
        longest = 0
        for piece in alike:
            longest = max(longest, -(-piece.end // block_size) * block_size)
            if members and group_tokens is not None and (len(members) + 1) * longest > group_tokens:
                yield members
                members, longest = [], -(-piece.end // block_size) * block_size
            members.append(piece)
        yield members


def _capped_attention(
    cap: float,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """Attention whose scores are cap · tanh(score / cap), Gemma 2's. The arguments are those of torch's."""
    grouped = query.unflatten(1, (key.shape[1], -1))  # [count, kv_heads, heads of each, width, head_dim]
    scores = grouped @ key[:, :, None].transpose(-1, -2) * (scale or query.shape[-1] ** -0.5)
    scores = scores.div_(cap).tanh_().mul_(cap) + attn_mask[:, :, None]
    return (scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value[:, :, None]).flatten(1, 2)


def _rows(tensor: torch.Tensor, chosen: slice | torch.Tensor) -> torch.Tensor:
    """Rows of a tensor: a view of a run, a copy of any others."""
    return tensor[chosen] if isinstance(chosen, slice) else tensor.index_select(0, chosen)
