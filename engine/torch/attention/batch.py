"""A ragged batch as tensors: its rows, and where their keys and values go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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


class Attention(Protocol):
    """Attention of a batch's rows, laid out once a step and called once a layer."""

    def __call__(self, query: torch.Tensor, kv: torch.Tensor, sliding: bool) -> torch.Tensor:
        """Return the mixed values [T, heads · head_dim] of `query` [T, heads, head_dim].

        kv: of the layer, [num_blocks, block_size · 2 · kv_heads · head_dim]; sliding: within the window alone.
        """


@dataclass(frozen=True)
class Batch:
    """T rows: the positions of all pieces, in the pieces' order."""

    inputs: torch.Tensor  # [T] ids, or [T, hidden] float32
    positions: torch.Tensor  # [T]
    slots: torch.Tensor  # [T] where the new keys and values go
    logit_rows: torch.Tensor | None  # rows that want logits; None: all
    attention: Attention


def lay_out(
    pieces: Sequence[BatchPiece], block_size: int, device: torch.device, attention: Attention
) -> Batch:
    """Return the batch of these pieces.

    In plain lists rather than arrays: most steps decode a few rows, where each array operation would cost
    more than a list of that length.
    """
    ids: list[int] = []
    hidden: list[np.ndarray] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    for piece in pieces:
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
    return Batch(inputs, rows[0], rows[1], wanted, attention)
