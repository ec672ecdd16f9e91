"""Tasks of a session: decode, verify drafts, draft, or run hidden states through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tandem.engine.base import Drafts, Tokens, Verdict
from tandem.engine.split.base import GoOn


@dataclass(slots=True, eq=False)
class GenerateTask:
    """Decode until the output ends, delivering each token.

    drafts: tokens looked up in the session's text, to be verified with the next step.
    """

    deliver: Callable[[Tokens], None]
    drafts: list[int] = field(default_factory=list)

    @property
    def window(self) -> int:
        """Positions whose logits are needed together."""
        return len(self.drafts) + 1


@dataclass(slots=True, eq=False)
class VerifyTask:
    """Verify the drafts in one step and deliver the verdict.

    q_ids: ids of the distributions that the drafts were drawn from, [drafts, width]; None for point masses.
    q_probs: their probabilities, [drafts, width]; zeros for a point mass.
    given: the client's drafts; looked up ones may be verified after them or in their place.
    """

    drafts: list[int]
    q_ids: np.ndarray | None
    q_probs: np.ndarray | None
    deliver: Callable[[Verdict], None]
    given: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.given = self.drafts

    @property
    def window(self) -> int:
        """Positions whose logits are needed together."""
        return len(self.drafts) + 1

    def cut(self, drafts: int) -> VerifyTask:
        """Return a task with the first `drafts` drafts only."""
        q_ids = None if self.q_ids is None else self.q_ids[:drafts]
        q_probs = None if self.q_probs is None else self.q_probs[:drafts]
        return VerifyTask(self.drafts[:drafts], q_ids, q_probs, self.deliver)

    def mix(self, drafts: list[int]) -> None:
        """Verify these drafts in place of the client's; they begin with those if those have distributions."""
        self.drafts = drafts
        if self.q_ids is not None and self.q_probs is not None:
            more = ((0, len(drafts) - len(self.given)), (0, 0))
            self.q_ids, self.q_probs = np.pad(self.q_ids, more), np.pad(self.q_probs, more)


@dataclass(slots=True, eq=False)
class DraftTask:
    """Decode `length` tentative tokens and deliver them with the distributions they were drawn from.

    ids: tokens so far.
    q: (ids, probabilities) of each sampled token, [width] each.
    """

    length: int
    deliver: Callable[[Drafts], None]
    ids: list[int] = field(default_factory=list)
    q: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    window = 1
    drafts = ()


class Computed(NamedTuple):
    """Hidden states [positions, hidden] float32; batch_tokens, batch_s: as in Forwarded."""

    rows: np.ndarray
    batch_tokens: int = 0
    batch_s: float = 0.0


@dataclass(slots=True, eq=False)
class ForwardTask:
    """Compute all rows and deliver the last `window`."""

    window: int
    deliver: Callable[[Computed], None]
    drafts = ()


@dataclass(slots=True, eq=False)
class ShallowTask:
    """Compute the first `end` positions in the outer part of a split model, and deliver."""

    end: int
    deliver: Callable[[], None]
    window = 0
    drafts = ()


@dataclass(slots=True, eq=False)
class RoundTask:
    """Draft in the outer part of a split model, and deliver.

    length: most tentative tokens.
    go_on: called with the probability of the last token; returns whether to draft another one.
    closes: whether the last token is computed, too, so that its hidden states are there.
    closing: whether it is being computed.
    """

    length: int
    go_on: GoOn
    closes: bool
    deliver: Callable[[], None]
    closing: bool = False
    window = 1
    drafts = ()


Task = GenerateTask | VerifyTask | DraftTask | ForwardTask | ShallowTask | RoundTask
