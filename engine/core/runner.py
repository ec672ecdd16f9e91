"""What a core needs of whatever computes its steps: a model, or a clock that stands in for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tandem.engine.base import TokenLogprob
from tandem.engine.config import HostMemory
from tandem.engine.core.host_memory import HostCopies
from tandem.engine.core.sequence import Sequence as Session

Work = list[tuple[Session, int]]
"""Sessions of a step, each with the positions that it computes."""


class Outcome(NamedTuple):
    """What became of a session whose window was computed.

    accepted: of the task's drafts, how many stand.
    token: the model's own, after those.
    scores: of the accepted drafts and the token, where they were asked for.
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
    """Computes steps over paged keys and values. All of it is called on the core's thread."""

    def run(self, work: Work, complete: Sequence[Session]) -> list[Outcome]:
        """Compute a step; the outcomes of the sessions whose windows it completes, in their order."""
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Copy a block's keys and values within the KV cache."""
        ...

    def host_copies(self, settings: HostMemory, clock: Callable[[], float]) -> HostCopies:
        """What copies blocks between the KV cache and `settings.blocks` blocks of host memory; clock: seconds."""
        ...
