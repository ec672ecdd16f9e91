"""Steps computed by a model: one forward pass over all pieces, then a token or a verdict for each complete window."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tandem.engine.config import HostMemory
from tandem.engine.core.host_memory import HostCopies
from tandem.engine.core.runner import Outcome, Work
from tandem.engine.core.sequence import Sequence as Session
from tandem.engine.torch.attention.batch import BatchPiece
from tandem.engine.torch.kv_offload import tensor_copies
from tandem.engine.torch.model import KVPool, Model
from tandem.engine.torch.outcomes import drafts_by_chance, outcomes


class TorchRunner:
    """A model over a paged KV cache of num_blocks blocks of block_size tokens.

    vocab_size: tokens that it may say: rows of its output matrix beyond them are padding. None: every row is a token.
    """

    def __init__(self, model: Model, num_blocks: int, block_size: int, vocab_size: int | None = None) -> None:
        self.model, self._vocab_size = model, vocab_size
        self.kv = KVPool(model.config, num_blocks, block_size, model.device, model.dtype)
        self.copy_block = self.kv.copy_block

    def free_block(self, block: int) -> None:
        """Do nothing: a block's place stays its own."""

    def host_copies(self, settings: HostMemory, clock: Callable[[], float]) -> HostCopies:
        return tensor_copies(self.kv, settings, clock)

    def run(self, work: Work, complete: Sequence[Session]) -> list[Outcome]:
        windows = set(complete)
        # alike pieces side by side; the logits of drafts drawn by chance come last
        ordered = sorted(work, key=lambda item: (drafts_by_chance(item[0]), item[1], item[0].computed))
        pieces = [
            BatchPiece(s.upcoming(grant), s.computed, s.table.blocks, self.logits(s) if s in windows else 0)
            for s, grant in ordered
        ]
        with torch.inference_mode():
            logits = self.forward(ordered, pieces)
            finished = [s for s, _ in ordered if s in windows]
            found = dict(zip(finished, self.outcomes(finished, logits), strict=True))
        return [found[s] for s in complete]

    def logits(self, s: Session) -> int:
        """Positions of a complete window whose logits are needed."""
        return s.window

    def forward(self, work: Work, pieces: Sequence[BatchPiece]) -> torch.Tensor:
        """The logits that the pieces of `work` want."""
        return self.model.forward(self.model.batch(pieces, self.kv), self.kv)

    def outcomes(self, finished: list[Session], logits: torch.Tensor) -> list[Outcome]:
        """Return the outcomes of sessions whose windows are complete, sampled drafts last; their logits follow one
        another."""
        return outcomes(finished, logits[:, : self._vocab_size])
