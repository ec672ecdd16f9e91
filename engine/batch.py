"""A ragged batch as tensors: which rows there are, where their keys and values go, what they attend to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Piece:
    """One sequence's part of a step: `ids` at positions start .. start + len(ids) − 1, KV blocks `blocks`
    (covering all positions up to the last), and how many of the last positions want logits."""

    ids: Sequence[int]
    start: int
    blocks: Sequence[int]
    logits: int

    @property
    def shape_class(self) -> tuple[int, int]:
        """Pieces of one class are alike enough that padding costs less than another attention call."""
        queries, length = len(self.ids), self.start + len(self.ids)
        width = 0 if queries == 1 else 1 if queries <= 16 else queries.bit_length()
        return width, (length // 512).bit_length()


@dataclass(frozen=True)
class Group:
    """Sequences whose attention runs in one call: `count` of them, padded to `width` queries each."""

    count: int
    width: int
    rows: slice | torch.Tensor  # its rows of the batch; a tensor [count · width] where padding repeats rows
    real: torch.Tensor | None  # which of the padded rows are no padding; None: all
    tables: slice | torch.Tensor  # [count · blocks] block numbers, padded with 0; a run needs no copy
    mask: torch.Tensor  # [count, 1, width, blocks · block_size], 0 or −inf


@dataclass(frozen=True)
class Batch:
    """T rows: the positions of all pieces, in the pieces' order. The groups follow one another."""

    ids: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]
    slots: torch.Tensor  # [T] where the new keys and values go
    groups: tuple[Group, ...]
    logit_rows: torch.Tensor | None  # rows that want logits; None: all


def lay_out(pieces: Sequence[Piece], block_size: int, device: torch.device, dtype: torch.dtype) -> Batch:
    """The batch of these pieces; neighbours of one shape class share a group, so sort by it."""
    counts = np.fromiter((len(p.ids) for p in pieces), np.int64, len(pieces))
    starts = np.fromiter((p.start for p in pieces), np.int64, len(pieces))
    ends = np.cumsum(counts)
    first_rows = ends - counts
    total = int(ends[-1])
    owner = np.repeat(np.arange(len(pieces)), counts)
    positions = np.arange(total) + (starts - first_rows)[owner]
    tables = np.zeros((len(pieces), max(len(p.blocks) for p in pieces)), np.int64)
    for row, piece in zip(tables, pieces, strict=True):
        row[: len(piece.blocks)] = piece.blocks
    slots = tables[owner, positions // block_size] * block_size + positions % block_size
    ids = np.fromiter((i for p in pieces for i in p.ids), np.int64, total)

    groups = []
    for some in _neighbours(pieces):
        length = max(p.start + len(p.ids) for p in pieces[some])
        used = tables[some, : -(-length // block_size)]
        groups.append(_group(counts[some], starts[some], first_rows[some], used, block_size, device, dtype))

    wanted = np.fromiter((p.logits for p in pieces), np.int64, len(pieces))
    logit_rows = None
    if int(wanted.sum()) != total:
        rows = np.arange(int(wanted.sum())) + np.repeat(ends - np.cumsum(wanted), wanted)
        logit_rows = torch.from_numpy(rows).to(device)
    return Batch(
        ids=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        slots=torch.from_numpy(slots).to(device),
        groups=tuple(groups),
        logit_rows=logit_rows,
    )


def _neighbours(pieces: Sequence[Piece]) -> Iterator[slice]:
    """Runs of pieces of one shape class."""
    begin = 0
    for _, run in groupby(pieces, key=lambda piece: piece.shape_class):
        end = begin + sum(1 for _ in run)
        yield slice(begin, end)
        begin = end


def _group(
    counts: np.ndarray,
    starts: np.ndarray,
    first_rows: np.ndarray,
    tables: np.ndarray,
    block_size: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Group:
    width = int(counts.max())
    column = np.arange(width)
    within = np.minimum(column, counts[:, None] - 1)  # padding repeats the last query
    seen = np.arange(tables.shape[1] * block_size) <= (starts[:, None] + within)[:, :, None]
    mask = torch.zeros(seen.shape, dtype=torch.float32).masked_fill_(torch.from_numpy(~seen), float("-inf"))
    rows: slice | torch.Tensor = slice(int(first_rows[0]), int(first_rows[-1] + counts[-1]))
    real = None
    if int(counts.min()) < width:
        rows = torch.from_numpy((first_rows[:, None] + within).reshape(-1)).to(device)
        real = torch.from_numpy(np.flatnonzero(column < counts[:, None])).to(device)
    flat = tables.reshape(-1)
    run = bool((np.diff(flat) == 1).all())
    return Group(
        count=len(counts),
        width=width,
        rows=rows,
        real=real,
        tables=slice(int(flat[0]), int(flat[-1]) + 1) if run else torch.from_numpy(flat.copy()).to(device),
        mask=mask[:, None].to(device, dtype),
    )
