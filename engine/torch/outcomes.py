"""Outcomes from logits: a token or a verdict for each session whose window is complete."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tandem.engine.core.runner import Outcome
from tandem.engine.core.sequence import Sequence as Session
from tandem.engine.core.tasks import DraftTask, VerifyTask
from tandem.engine.torch.rng import Purpose, uniforms
from tandem.engine.torch.sampling import adjust, distributions, draw, logprobs, sparse
from tandem.engine.torch.verification import Window, verify


def outcomes(finished: Sequence[Session], logits: torch.Tensor) -> list[Outcome]:
    """Return the outcomes of sessions whose windows are complete, sampled drafts last.

    logits: [Σ window, vocab], the sessions' windows one after another.
    """
    decided = [s for s in finished if not drafts_by_chance(s)]
    rows = sum(s.window for s in decided)
    found = decide(decided, logits[:rows]) if decided else []
    if drawn := finished[len(decided) :]:
        found += _draw(drawn, logits[rows:])
    return found


def drafts_by_chance(s: Session) -> bool:
    """Whether the session's task is a draft that is sampled."""
    return isinstance(s.task, DraftTask) and not s.sampling.greedy


def decide(sequences: Sequence[Session], raw: torch.Tensor) -> list[Outcome]:
    """Verification windows; plain decode and a greedy draft are windows without drafts."""
    windows = [_window(s) for s in sequences]
    logits = raw
    if any(w.sampling.changes_logits for w in windows):
        rows = [(s, w, j) for s, w in zip(sequences, windows, strict=True) for j in range(s.window)]
        logits = adjust(
            raw,
            [w.sampling for _, w, _ in rows],
            lambda i: (rows[i][0].prompt, rows[i][0].output + rows[i][1].drafts[: rows[i][2]]),
            [s.ends for s, _, _ in rows],
        )
    if any(s.matcher is not None for s in sequences):
        if logits is raw and any(w.sampling.logprobs >= 0 for w in windows):
            logits = raw.clone()
        forbid(logits, sequences)
    found = []
    row = 0
    for window, (accepted, own) in zip(windows, verify(logits, windows), strict=True):
        scores = None
        if window.sampling.logprobs >= 0:
            ids = [*window.drafts[:accepted], own]
            scores = logprobs(raw[row : row + len(ids)], ids, window.sampling.logprobs)
        row += len(window.drafts) + 1
        found.append(Outcome(accepted, own, scores))
    return found


def forbid(logits: torch.Tensor, sequences: Sequence[Session]) -> None:
    """Rule out, in place, the tokens that the sequences' grammars forbid. logits: [Σ window, vocab]."""
    row = 0
    for s in sequences:
        if s.matcher is not None and s.task is not None:
            forbidden = torch.from_numpy(s.matcher.forbidden(s.output, s.task.drafts)).to(logits.device)
            logits[row : row + s.window, : forbidden.shape[1]].masked_fill_(forbidden, -torch.inf)
        row += s.window


def adjusted(sequences: Sequence[Session], raw: torch.Tensor) -> torch.Tensor:
    """Return the logits that each sequence's next token is chosen by, a row each."""
    settings, ends = [s.sampling for s in sequences], [s.ends for s in sequences]
    return adjust(raw, settings, lambda i: (sequences[i].prompt, sequences[i].output), ends)


def _draw(sequences: Sequence[Session], raw: torch.Tensor) -> list[Outcome]:
    """Drafts drawn by chance, each with the distribution it was drawn from."""
    settings = [s.sampling for s in sequences]
    logits = adjusted(sequences, raw)
    forbid(logits, sequences)
    q_ids, q_probs = sparse(distributions(logits, settings))
    chance = uniforms([s.seed for s in settings], [s.output_len for s in sequences], Purpose.DRAFT)
    drawn = q_ids.gather(1, draw(q_probs, chance)[:, None]).squeeze(1).tolist()
    ids, probs = q_ids.cpu().numpy().astype(np.int32), q_probs.float().cpu().numpy()
    return [Outcome(0, token, None, (ids[i], probs[i])) for i, token in enumerate(drawn)]


def _window(s: Session) -> Window:
    task = s.task
    assert task is not None
    q = (task.q_ids, task.q_probs) if isinstance(task, VerifyTask) else ()
    return Window(list(task.drafts), s.output_len, s.sampling, *q)
