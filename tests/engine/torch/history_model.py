"""A stand-in for `engine.torch.model.Model` whose logits name their history: what it caches are the tokens
themselves, so that a key or value read from the wrong place changes the output for certain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from tandem.engine.base import Sampling
from tandem.engine.config import HostMemory
from tandem.engine.core.host_memory import HostCopies
from tandem.engine.models.architectures import ModelConfig
from tandem.engine.torch.attention.batch import BatchPiece
from tandem.engine.torch.kv_offload import CPUCopies
from tandem.engine.torch.model import KVPool
from tandem.engine.torch.rng import Purpose, uniforms
from tandem.engine.torch.runner import TorchRunner
from tandem.engine.torch.sampling import adjust, distributions, draw, sparse
from tandem.engine.torch.verification import Window, verify
from tests.engine.core.core_driver import EOS, VOCAB, Q


class HistoryRunner(TorchRunner):
    """The torch runner over such a model, and what it must say (see KnownRunner)."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(cast(Any, HistoryModel()), num_blocks, block_size)
        self._copies: CPUCopies | None = None

    def verdict(
        self, prompt: list[int], output: list[int], sampling: Sampling, drafts: list[int], q: Q | None
    ) -> tuple[int, int]:
        rows = [_penalised(prompt, output + drafts[:j], sampling) for j in range(len(drafts) + 1)]
        q_ids, q_probs = (None, None) if q is None else q
        ((accepted, own),) = verify(torch.cat(rows), [Window(drafts, len(output), sampling, q_ids, q_probs)])
        return accepted, own

    def proposal(
        self, prompt: list[int], output: list[int], sampling: Sampling
    ) -> tuple[int, tuple[list[int], list[float]] | None]:
        logits = _penalised(prompt, output, sampling)
        if sampling.greedy:
            return int(logits.argmax()), None
        ids, probs = sparse(distributions(logits, [sampling]))
        chance = uniforms([sampling.seed], [len(output)], Purpose.DRAFT)
        return int(ids[0, int(draw(probs, chance))]), (ids[0].tolist(), probs[0].tolist())

    def host_copies(self, settings: HostMemory, clock: Callable[[], float]) -> HostCopies:
        self._copies = CPUCopies(self.kv, settings, clock)
        return self._copies

    def cells(self) -> list[tuple[int, int]]:
        return _cells(self.kv.blocks)

    def host_cells(self) -> list[tuple[int, int]]:
        return [] if self._copies is None else _cells(self._copies.host.transpose(0, 1))


class _Batch(NamedTuple):
    pieces: list[tuple[list[int], int, list[int], int]]
    block_size: int


class HistoryModel:
    """Exact and independent of how tokens are batched: logits follow from all tokens before them."""

    def __init__(
        self,
        context: int = 4096,
        vocab_size: int = VOCAB,
        logits_after: Callable[[Sequence[int]], torch.Tensor] | None = None,
    ) -> None:
        """logits_after: gives a history's logits, by default those of this module."""
        self._logits_after = logits_after or hashed_logits
        self.config = ModelConfig(
            vocab_size=vocab_size,
            hidden=2,
            layers=1,
            heads=1,
            kv_heads=1,
            head_dim=2,
            ffn=1,
            norm_eps=1e-5,
            context=context,
        )
        self.device, self.dtype = torch.device("cpu"), torch.float32

    def batch(self, pieces: Sequence[BatchPiece], pool: KVPool) -> _Batch:
        return _Batch([(list(p.ids), p.start, list(p.blocks), p.logits) for p in pieces], pool.block_size)

    def forward(self, batch: _Batch, pool: KVPool) -> torch.Tensor:
        cells = pool.layers[0].view(-1, 4)  # a token's key and value, of two numbers each
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
            rows += [self._logits_after(history[: end - wanted + 1 + j]) for j in range(wanted)]
        return torch.stack(rows) if rows else torch.empty(0, self.config.vocab_size)


def _cells(blocks: torch.Tensor) -> list[tuple[int, int]]:
    """(token, position) of each slot of [1 layer, blocks, width]."""
    return [tuple(cell) for cell in blocks[0].view(-1, 4)[:, :2].tolist()]


def _penalised(prompt: list[int], output: list[int], sampling: Sampling) -> torch.Tensor:
    """Logits [1, VOCAB] after the output, penalties applied."""
    ends = (*sampling.stop_tokens, *([] if sampling.ignore_eos else [EOS]))
    return adjust(hashed_logits(prompt + output)[None], [sampling], lambda _: (prompt, output), [ends])


def hashed_logits(tokens: Sequence[int]) -> torch.Tensor:
    """[VOCAB]; several likely tokens, the end one rare."""
    chance = uniforms([hash(tuple(tokens)) % 2**63] * VOCAB, range(VOCAB), Purpose.SAMPLE)
    logits = 4.0 * chance
    logits[EOS] -= 3.0
    return torch.from_numpy(logits.astype(np.float32))
