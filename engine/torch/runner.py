"""Steps computed by a model: one forward pass over all pieces, then a token or a verdict for each complete window."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from tandem.engine.config import HostMemory
from tandem.engine.core.host_memory import HostCopies
from tandem.engine.core.runner import Outcome, Work
from tandem.engine.core.sequence import Sequence as Session
from tandem.engine.core.tasks import DraftTask, VerifyTask
from tandem.engine.torch.batch import BatchPiece
from tandem.engine.torch.kv_offload import tensor_copies
from tandem.engine.torch.model import KVPool, Model
from tandem.engine.torch.rng import Purpose, uniforms
from tandem.engine.torch.sampling import distributions, draw, logprobs, penalise, sparse
from tandem.engine.torch.verification import Window, verify


class TorchRunner:
    """A model over a paged KV cache of num_blocks blocks of block_size tokens."""

    def __init__(self, model: Model, num_blocks: int, block_size: int) -> None:
        self.model = model
        self.kv = KVPool(model.config, num_blocks, block_size, model.device, model.dtype)
        self.copy_block = self.kv.copy_block

    def free_block(self, block: int) -> None:
        """Do nothing: a block's place stays its own."""

    def host_copies(self, settings: HostMemory, clock: Callable[[], float]) -> HostCopies:
        return tensor_copies(self.kv, settings, clock)

    def run(self, work: Work, complete: Sequence[Session]) -> list[Outcome]:
        windows = set(complete)
        # alike pieces side by side; the logits of drafts drawn by chance come last
        ordered = sorted(work, key=lambda item: (_drafts_by_chance(item[0]), item[1], item[0].computed))
        pieces = [
            BatchPiece(s.upcoming(grant), s.computed, s.table.blocks, self.logits(s) if s in windows else 0)
            for s, grant in ordered
        ]
        with torch.inference_mode():
            logits = self.forward(ordered, pieces)
            finished = [s for s, _ in ordered if s in windows]
            outcomes = dict(zip(finished, self.outcomes(finished, logits), strict=True))
        return [outcomes[s] for s in complete]

    def logits(self, s: Session) -> int:
        """Positions of a complete window whose logits are needed."""
        return s.window

    def forward(self, work: Work, pieces: Sequence[BatchPiece]) -> torch.Tensor:
        """The logits that the pieces of `work` want."""
        return self.model.forward(self.model.batch(pieces, self.kv), self.kv)

    def outcomes(self, finished: list[Session], logits: torch.Tensor) -> list[Outcome]:
        """Return the outcomes of sessions whose windows are complete, sampled drafts last; their logits follow one
        another."""
        decided = [s for s in finished if not _drafts_by_chance(s)]
        rows = sum(s.window for s in decided)
        outcomes = decide(decided, logits[:rows]) if decided else []
        if drawn := finished[len(decided) :]:
            outcomes += _draw(drawn, logits[rows:])
        return outcomes


def _drafts_by_chance(s: Session) -> bool:
    return isinstance(s.task, DraftTask) and not s.sampling.greedy


def decide(sequences: Sequence[Session], raw: torch.Tensor) -> list[Outcome]:
    """Verification windows; plain decode and a greedy draft are windows without drafts."""
    windows = [_window(s) for s in sequences]
    logits = raw
    if any(w.sampling.penalised for w in windows):
        rows = [(s, w, j) for s, w in zip(sequences, windows, strict=True) for j in range(s.window)]
        logits = penalise(
            raw,
            [w.sampling for _, w, _ in rows],
            lambda i: (rows[i][0].prompt, rows[i][0].output + rows[i][1].drafts[: rows[i][2]]),
        )
    outcomes = []
    row = 0
    for window, (accepted, own) in zip(windows, verify(logits, windows), strict=True):
        scores = None
        if window.sampling.logprobs >= 0:
            ids = [*window.drafts[:accepted], own]
            scores = logprobs(raw[row : row + len(ids)], ids, window.sampling.logprobs)
        row += len(window.drafts) + 1
        outcomes.append(Outcome(accepted, own, scores))
    return outcomes


def _draw(sequences: Sequence[Session], raw: torch.Tensor) -> list[Outcome]:
    """Drafts drawn by chance, each with the distribution it was drawn from."""
    settings = [s.sampling for s in sequences]
    logits = penalise(raw, settings, lambda i: (sequences[i].prompt, sequences[i].output))
    q_ids, q_probs = sparse(distributions(logits, settings))
    chance = uniforms([s.seed for s in settings], [s.output_len for s in sequences], Purpose.DRAFT)
    drawn = q_ids.gather(1, draw(q_probs, chance)[:, None]).squeeze(1).tolist()
    ids, probs = q_ids.cpu().numpy().astype(np.int32), q_probs.float().cpu().numpy()
    return [Outcome(0, token, None, (ids[i], probs[i])) for i, token in enumerate(drawn)]


def _window(s: Session) -> Window:
    if isinstance(s.task, VerifyTask):
        return Window(s.task.drafts, s.output_len, s.sampling, s.task.q_ids, s.task.q_probs)
    return Window([], s.output_len, s.sampling)
