"""Speculative verification: which drafted tokens stand, and which token the target adds.

Greedy: a draft stands while it equals the target's best token. Otherwise rejection sampling (Leviathan
et al. 2023): draft d with probability q(d) stands with probability min(1, p(d)/q(d)); after the first
rejection the target's own token is drawn from max(p − q, 0), normalised; after a full accept from p. The
output is then distributed as the target's own, whatever drafted. Without q the draft counts as a point
mass: the target draws its token at every position from p, and a draft stands while it is that token, so that it stands
with p(d) and a seed's tokens are the same whatever is drafted. Drafts of a forced session all stand.
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

    @property
    def stated(self) -> bool:
        """Whether the drafts come with the distributions that they were drawn from."""
        return self.q_ids is not None and self.q_probs is not None


def verify(logits: torch.Tensor, windows: Sequence[Window]) -> list[tuple[int, int]]:
    """(accepted, own token) for each window.

    logits: [Σ (drafts + 1), V], penalties already applied; row j of a window predicts its draft j, the
    last row the token after all drafts.
    """
    if all(w.sampling.greedy for w in windows):
        return _verify_greedy(logits, windows)
    sizes = [len(w.drafts) + 1 for w in windows]
    probs = distributions(logits, [w.sampling for w, n in zip(windows, sizes, strict=True) for _ in range(n)])
    first_rows = (np.cumsum(sizes) - sizes).tolist()
    found: dict[int, tuple[int, int]] = {}
    for stated, verified in ((True, _reject), (False, _draw_along)):
        chosen = [i for i, w in enumerate(windows) if w.stated == stated]
        if chosen:
            verdicts = verified([windows[i] for i in chosen], [first_rows[i] for i in chosen], probs)
            found |= zip(chosen, verdicts, strict=True)
    return [found[i] for i in range(len(windows))]


def _reject(
    windows: Sequence[Window], first_rows: Sequence[int], probs: torch.Tensor
) -> list[tuple[int, int]]:
    """Verify windows by rejection sampling. first_rows: of each window among `probs`."""
    accepted = _accepted(probs, windows, first_rows)
    final = probs[
        torch.tensor(first_rows).to(probs.device) + torch.from_numpy(accepted).to(probs.device)
    ].clone()
    for row, window, a in zip(final, windows, accepted.tolist(), strict=True):
        if a < len(window.drafts):
            _subtract(row, window, a)
    chance = uniforms(
        [w.sampling.seed for w in windows],
        [w.position + a for w, a in zip(windows, accepted.tolist(), strict=True)],
        Purpose.SAMPLE,
    )
    return list(zip(accepted.tolist(), draw(final, chance).tolist(), strict=True))


def _draw_along(
    windows: Sequence[Window], first_rows: Sequence[int], probs: torch.Tensor
) -> list[tuple[int, int]]:
    """Verify point masses by the target's own tokens."""
    places = [
        (w, row, j) for w, row in zip(windows, first_rows, strict=True) for j in range(len(w.drafts) + 1)
    ]
    chance = uniforms(
        [w.sampling.seed for w, _, _ in places], [w.position + j for w, _, j in places], Purpose.SAMPLE
    )
    rows = torch.tensor([row + j for _, row, j in places], device=probs.device)
    own = iter(draw(probs[rows], chance).tolist())
    verdicts = []
    for window in windows:
        tokens = [next(own) for _ in range(len(window.drafts) + 1)]
        accepted = len(window.drafts) if window.sampling.forced else 0
        while accepted < len(window.drafts) and window.drafts[accepted] == tokens[accepted]:
            accepted += 1
        verdicts.append((accepted, tokens[accepted]))
    return verdicts


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


def _accepted(probs: torch.Tensor, windows: Sequence[Window], first_rows: Sequence[int]) -> np.ndarray:
    """Return the number of accepted drafts of each window, [windows]."""
    accepted = np.zeros(len(windows), np.int64)
    rows = [first + j for w, first in zip(windows, first_rows, strict=True) for j in range(len(w.drafts))]
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
    assert window.q_ids is not None
    assert window.q_probs is not None
    stated = np.where(window.q_ids == np.asarray(window.drafts)[:, None], window.q_probs, 0.0).sum(axis=1)
    return np.where(stated > 0.0, stated, 1.0)


def _subtract(row: torch.Tensor, window: Window, index: int) -> None:
    """p − q of the rejected draft, cut at 0, in place. Where nothing is left (p ≤ q everywhere, by
    rounding) the row stays p."""
    p = row.clone()
    draft = window.drafts[index]
    assert window.q_ids is not None
    assert window.q_probs is not None
    if bool(((window.q_ids[index] == draft) & (window.q_probs[index] > 0)).any()):
        ids = torch.from_numpy(window.q_ids[index].astype(np.int64)).to(row.device)
        row.scatter_add_(0, ids, -torch.from_numpy(window.q_probs[index].copy()).to(row.device, row.dtype))
        row.clamp_(min=0.0)
    else:
        row[draft] = 0.0
    if float(row.sum()) <= 0.0:
        row.copy_(p)
