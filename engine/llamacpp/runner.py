"""Steps computed by llama.cpp: one forward pass over all pieces, then an outcome for each complete window."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tandem.engine.config import HostMemory
from tandem.engine.core.host_memory import HostCopies
from tandem.engine.core.runner import Outcome, Work
from tandem.engine.core.sequence import Sequence as Session
from tandem.engine.llamacpp.model import BatchRow, LlamaModel
from tandem.engine.llamacpp.rows import Rows
from tandem.engine.torch.outcomes import drafts_by_chance, outcomes


class LlamaRunner:
    """A model of llama.cpp below a core whose KV cache has blocks of `block_size` tokens.

    rows: sequences that the model's context has.
    vocab_size: tokens that it may say: logits beyond them are padding.
    """

    def __init__(self, model: LlamaModel, rows: int, block_size: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.model, self._rows = model, Rows(model, rows, block_size)
        self.copy_block, self.free_block = self._rows.copy_block, self._rows.free_block

    def run(self, work: Work, complete: Sequence[Session]) -> list[Outcome]:
        windows = set(complete)
        ordered = sorted(work, key=lambda item: drafts_by_chance(item[0]))
        batch = [
            BatchRow(
                self._rows.place(s, grant),
                s.computed,
                list(s.upcoming(grant)),
                s.window if s in windows else 0,
            )
            for s, grant in ordered
        ]
        logits = torch.from_numpy(self.model.forward(batch))[:, : self._vocab_size]
        finished = [s for s, _ in ordered if s in windows]
        with torch.inference_mode():
            found = dict(zip(finished, outcomes(finished, logits), strict=True))
        return [found[s] for s in complete]

    def host_copies(self, settings: HostMemory, clock: Callable[[], float]) -> HostCopies:
        raise ValueError("llama.cpp copies no blocks of its KV cache to host memory: leave host_memory out")
