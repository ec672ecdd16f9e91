"""A stand-in for `engine.model.Model` whose logits name their history: what it caches are the tokens
themselves, so that a key or value read from the wrong place changes the output for certain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from engine.batch import Piece
from engine.chance import Purpose, uniforms
from engine.model import KVPool
from engine.weights import ModelConfig

VOCAB, EOS = 9, 2


class _Batch(NamedTuple):
    pieces: list[tuple[list[int], int, list[int], int]]
    block_size: int


class HistoryModel:
    """Exact and independent of how tokens are batched: logits are a hash of all tokens before them."""

    def __init__(self, context: int = 4096) -> None:
        self.config = ModelConfig(
            vocab_size=VOCAB,
            hidden=2,
            layers=1,
            heads=1,
            kv_heads=1,
            head_dim=2,
            norm_eps=1e-5,
            context=context,
            eos=EOS,
        )
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.positions: list[int] = []  # computed in each step, of all pieces

    def batch(self, pieces: Sequence[Piece], pool: KVPool) -> _Batch:
        return _Batch([(list(p.ids), p.start, list(p.blocks), p.logits) for p in pieces], pool.block_size)

    def forward(self, batch: _Batch, pool: KVPool) -> torch.Tensor:
        cells = slots(pool)
        self.positions.append(sum(len(ids) for ids, *_ in batch.pieces))
        rows = []
        for ids, start, blocks, wanted in batch.pieces:
            assert len(ids) > 0
            end = start + len(ids)
            position = np.arange(end)
            where = np.asarray(blocks)[position // batch.block_size] * batch.block_size
            where = torch.from_numpy(where + position % batch.block_size)
            cells[where[start:], 0] = torch.tensor(ids, dtype=torch.float32)
            cells[where[start:], 1] = torch.arange(start, end, dtype=torch.float32)
            read = cells[where]
            assert read[:, 1].tolist() == position.tolist(), "a block holds positions of another place"
            history = [int(t) for t in read[:, 0].tolist()]
            rows += [logits_after(history[: end - wanted + 1 + j]) for j in range(wanted)]
        return torch.stack(rows) if rows else torch.empty(0, VOCAB)


def slots(pool: KVPool) -> torch.Tensor:
    """The cache as [slots, …]: a token's id at 0 and its position at 1."""
    layer = pool.layers[0]
    return layer.view(layer.shape[0] * pool.block_size, -1)


def logits_after(tokens: Sequence[int]) -> torch.Tensor:
    """[VOCAB]; several likely tokens, the end one rare."""
    chance = uniforms([hash(tuple(tokens)) % 2**63] * VOCAB, range(VOCAB), Purpose.SAMPLE)
    logits = 4.0 * chance
    logits[EOS] -= 3.0
    return torch.from_numpy(logits.astype(np.float32))
