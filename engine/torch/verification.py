"""Speculative verification: which drafted tokens stand, and which token the target adds.

Greedy: a draft stands while it equals the target's best token. Otherwise rejection sampling (Leviathan
et al. 2023): draft d with probability q(d) stands with probability min(1, p(d)/q(d)); after the first
rejection the target's own token is drawn from max(p − q, 0), normalised; after a full accept from p. The
output is then distributed as the target's own, whatever drafted. Without q the draft counts as a point
mass: accept with p(d), else draw from p without d. Drafts of a forced session all stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tandem.engine.base import Sampling
from tandem.engine.torch.rng import Purpose, uniforms
from tandem.engine.torch.sampling import distributions, draw


@dataclass(frozen=True, slots=True)
class Window:
    """One session's drafts, to be checked against rows of the step's logits.

    position: output position of the first draft. q_ids, q_probs: [drafts, width], or None (point masses).
    """

    drafts: list[int]
    position: int
    sampling: Sampling
    q_ids: np.ndarray | None = None
    q_probs: np.ndarray | None = None


def verify(logits: torch.Tensor, windows: Sequence[Window]) -> list[tuple[int, int]]:
    """(accepted, own token) for each window.

    logits: [Σ (drafts + 1), V], penalties already applied; row j of a window predicts its draft j, the
    last row the token after all drafts.
    """
    if all(w.sampling.greedy for w in windows):
        return _verify_greedy(logits, windows)
    sizes = [len(w.drafts) + 1 for w in windows]
    probs = distributions(logits, [w.sampling for w, n in zip(windows, sizes, strict=True) for _ in range(n)])
    first_rows = np.cumsum(sizes) - sizes
    accepted = _accepted(probs, windows, first_rows)
    final = probs[torch.from_numpy(first_rows + accepted).to(probs.device)].clone()
    for row, window, a in zip(final, windows, accepted.tolist(), strict=True):
        if a < len(window.drafts):
            _subtract(row, window, a)
    chance = uniforms(
        [w.sampling.seed for w in windows],
        [w.position + a for w, a in zip(windows, accepted.tolist(), strict=True)],
        Purpose.SAMPLE,
    )
    return list(zip(accepted.tolist(), draw(final, chance).tolist(), strict=True))


def _verify_greedy(logits: torch.Tensor, windows: Sequence[Window]) -> list[tuple[int, int]]:
    best = logits.argmax(dim=-1).tolist()
    verdicts, row = [], 0
    for window in windows:
        accepted = len(window.drafts) if window.sampling.forced else 0
        while accepted < len(window.drafts) and window.drafts[accepted] == best[row + accepted]:
            accepted += 1
        verdicts.append((accepted, best[row + accepted]))
        row += len(window.drafts) + 1
    return verdicts


def _accepted(probs: torch.Tensor, windows: Sequence[Window], first_rows: np.ndarray) -> np.ndarray:
    """Return the number of accepted drafts of each window, [windows]."""
    accepted = np.zeros(len(windows), np.int64)
    rows = [
        int(first) + j for w, first in zip(windows, first_rows, strict=True) for j in range(len(w.drafts))
    ]
    if not rows:
        return accepted
    drafts = [d for w in windows for d in w.drafts]
    p = (
        probs[torch.tensor(rows, device=probs.device), torch.tensor(drafts, device=probs.device)]
        .cpu()
        .numpy()
    )
    q = np.concatenate([_draft_mass(w) for w in windows])
    chance = uniforms(
        [w.sampling.seed for w in windows for _ in w.drafts],
        [w.position + j for w in windows for j in range(len(w.drafts))],
        Purpose.ACCEPT,
    )
    stands = chance * q < p
    at = 0
    for i, window in enumerate(windows):
        kept = stands[at : at + len(window.drafts)]
        accepted[i] = len(kept) if window.sampling.forced or kept.all() else int(kept.argmin())
        at += len(window.drafts)
    return accepted


def _draft_mass(window: Window) -> np.ndarray:
    """q(d) of each draft. A draft outside its own stated support has q = 0 there: it then stands wherever
    p > 0, which would bias the output, so it is counted as a point mass instead."""
    if window.q_ids is None or window.q_probs is None:
        return np.ones(len(window.drafts))
    stated = np.where(window.q_ids == np.asarray(window.drafts)[:, None], window.q_probs, 0.0).sum(axis=1)
    return np.where(stated > 0.0, stated, 1.0)


def _subtract(row: torch.Tensor, window: Window, index: int) -> None:
    """p − q of the rejected draft, cut at 0, in place. Where nothing is left (p ≤ q everywhere, by
    rounding) the row stays p."""
    p = row.clone()
    draft = window.drafts[index]
    stated = (
        window.q_ids is not None
        and window.q_probs is not None
        and bool(((window.q_ids[index] == draft) & (window.q_probs[index] > 0)).any())
    )
    if stated and window.q_ids is not None and window.q_probs is not None:
        ids = torch.from_numpy(window.q_ids[index].astype(np.int64)).to(row.device)
        row.scatter_add_(0, ids, -torch.from_numpy(window.q_probs[index].copy()).to(row.device, row.dtype))
        row.clamp_(min=0.0)
    else:
        row[draft] = 0.0
    if float(row.sum()) <= 0.0:
        row.copy_(p)
