"""TokenFlow's scheduling where readers would rather share than have far more than they read.

Either choice costs something: a request that rests leaves memory to others and is fetched again later, so that the
engine makes fewer tokens; a reader who is promised less may wait within the answer. `buffer_aware` does neither.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tandem.policies.scheduling.base import EngineLoad, Ints, scheduling
from tandem.policies.scheduling.buffer_aware import BufferAware


@scheduling.register("resting")
class Resting(BufferAware):
    """Buffer-aware scheduling in which requests far ahead of their readers rest.

    unread: share of an expected output that may lie unread; beyond it a request rests while others wait.
    tolerated: share of their rates with which readers are content.
    interval_s, conservativeness: see BufferAware.
    """

    def __init__(
        self,
        unread: float = 0.1,
        tolerated: float = 1.0,
        interval_s: float = 0.2,
        conservativeness: float = 2.0,
    ) -> None:
        super().__init__(interval_s, conservativeness)
        if unread <= 0 or not 0 < tolerated <= 1:
            raise ValueError(f"needs unread > 0 and 0 < tolerated ≤ 1, not {unread}, {tolerated}")
        self._unread, self._tolerated = unread, tolerated

    def choose(self, load: EngineLoad) -> Ints:
        load = replace(load, rate=self._tolerated * load.rate)
        # One that would be dry before it is back does not rest.
        enough = np.maximum(self._unread * load.expected, self._needed(load, self._return_s(load)))
        active = np.flatnonzero(load.buffer <= enough)
        if not len(active):
            return super().choose(load)
        chosen: Ints = active[super().choose(load.part(active))]
        return chosen
