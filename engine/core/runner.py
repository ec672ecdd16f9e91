"""Interface between a core and its runner, which computes steps: a model, or a timer that replaces one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tandem.engine.base import TokenLogprob
from tandem.engine.config import HostMemory
from tandem.engine.core.host_memory import HostCopies
from tandem.engine.core.sequence import Sequence as Session

Work = list[tuple[Session, int]]
"""The sessions of a step, each with the number of positions to compute."""


class Outcome(NamedTuple):
    """Result of a session whose window was computed.

    accepted: number of the task's drafts that stand.
    token: the model's own token after those.
    scores: log-probabilities of the accepted drafts and the token; None if not asked for.
    q: (ids, probabilities) that a draft's token was drawn from, [width] each; None for a greedy one, except in a split
        model's outer part.
    hidden: rows that a forward task asked for.
    """

    accepted: int
    token: int
    scores: list[TokenLogprob] | None = None
    q: tuple[np.ndarray, np.ndarray] | None = None
    hidden: np.ndarray | None = None


class Runner(Protocol):
    """Computes steps over paged keys and values. Called on the core's thread only."""

    def run(self, work: Work, complete: Sequence[Session]) -> list[Outcome]:
        """Compute a step; return the outcomes of `complete`, the sessions whose windows it completes, in their
        order."""
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Copy a block's keys and values within the KV cache."""
        ...

    def free_block(self, block: int) -> None:
        """Note that a block's keys and values are not needed any more."""
        ...

    def host_copies(self, settings: HostMemory, clock: Callable[[], float]) -> HostCopies:
        """Return copies between the KV cache and `settings.blocks` blocks of host memory; clock: in seconds."""
        ...
