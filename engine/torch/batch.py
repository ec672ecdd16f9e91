"""A ragged batch as tensors: its rows, where their keys and values go, what they attend to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class BatchPiece:
    """One sequence's part of a step: `ids` at positions start .. start + len(ids) − 1, KV blocks `blocks`
    (covering all positions up to the last), and how many of the last positions want logits. A model's middle has
    hidden states [positions, hidden] in place of ids."""

    ids: Sequence[int] | np.ndarray
    start: int
    blocks: Sequence[int]
    logits: int

    @property
    def end(self) -> int:
        return self.start + len(self.ids)

    @property
    def shape_class(self) -> tuple[int, int]:
        """Pieces of one class are alike enough that padding costs less than another attention call."""
        queries = len(self.ids)
        width = 0 if queries == 1 else 1 if queries <= 16 else queries.bit_length()
        return width, (self.end // 512).bit_length()


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


@dataclass(frozen=True)
class Batch:
    """T rows: the positions of all pieces, in the pieces' order. The groups follow one another."""

    inputs: torch.Tensor  # [T] ids, or [T, hidden] float32
    positions: torch.Tensor  # [T]
    slots: torch.Tensor  # [T] where the new keys and values go
    groups: tuple[Group, ...]
    logit_rows: torch.Tensor | None  # rows that want logits; None: all


def lay_out(
    pieces: Sequence[BatchPiece],
    block_size: int,
    device: torch.device,
    dtype: torch.dtype,
    group_tokens: int | None = None,
    window: int | None = None,
) -> Batch:
    """The batch of these pieces; neighbours of one shape class share a group, so sort by it.

    group_tokens: tokens of context, padding included, that a group of several has at most; None: any number.
    window: sliding window, tokens; None: there is none.

    In plain lists rather than arrays: most steps decode a few rows, where each array operation would cost
    more than a list of that length.
    """
    ids: list[int] = []
    hidden: list[np.ndarray] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    groups: list[Group] = []
    for members in _grouped(pieces, block_size, group_tokens):
        groups.append(_group(members, len(positions), block_size, device, dtype, window))
        for piece in members:
            if isinstance(piece.ids, np.ndarray):
                hidden.append(piece.ids)
            else:
                ids += piece.ids
            positions += range(piece.start, piece.end)
            slots += [
                piece.blocks[position // block_size] * block_size + position % block_size
                for position in range(piece.start, piece.end)
            ]
            logit_rows += range(len(positions) - piece.logits, len(positions))
    rows = torch.tensor([positions, slots, ids] if ids else [positions, slots], device=device)
    inputs = rows[2] if ids else torch.from_numpy(np.concatenate(hidden)).to(device)
    wanted = None
    if len(logit_rows) < len(positions):
        wanted = torch.tensor(logit_rows, dtype=torch.long, device=device)
    return Batch(inputs, rows[0], rows[1], tuple(groups), wanted)


def _grouped(
    pieces: Sequence[BatchPiece], block_size: int, group_tokens: int | None
) -> Iterator[list[BatchPiece]]:
    """Neighbours of one shape class, as many together as may be."""
    for _, alike in groupby(pieces, key=lambda piece: piece.shape_class):
        members: list[BatchPiece] = []
        longest = 0
        for piece in alike:
            longest = max(longest, -(-piece.end // block_size) * block_size)
            if members and group_tokens is not None and (len(members) + 1) * longest > group_tokens:
                yield members
                members, longest = [], -(-piece.end // block_size) * block_size
            members.append(piece)
        yield members


def _group(
    pieces: Sequence[BatchPiece],
    first_row: int,
    block_size: int,
    device: torch.device,
    dtype: torch.dtype,
    window: int | None,
) -> Group:
    """The group of these pieces, whose rows in the batch begin at `first_row`."""
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
            [i * width + j for i, n in enumerate(counts) for j in range(n)], dtype=torch.long, device=device
        )
    blocks = -(-max(p.end for p in pieces) // block_size)
    table = [b for p in pieces for b in [*p.blocks[:blocks], *[0] * (blocks - len(p.blocks))]]
    run = table == list(range(table[0], table[0] + len(table)))
    last_seen = torch.tensor(
        [min(p.start + j, p.end - 1) for p in pieces for j in range(width)], device=device
    ).view(-1, 1, width, 1)
    positions = torch.arange(blocks * block_size, device=device)
    hidden = positions > last_seen
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
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
