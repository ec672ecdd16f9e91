"""SGLang-like admission: the room kept for outputs shrinks while all goes well, and grows when it was too little.

Source: SGLang 0.5, `PrefillAdder` and `Scheduler.update_running_batch`. "Like": decisions are made at intervals, not at
every step, and a preempted request keeps its place in the queue.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tandem.policies.scheduling.base import EngineLoad, Ints, fit, scheduling

LONGEST = 4096  # tokens: most output for which room is kept
AHEAD = 20  # tokens of each running request for which there must be room after one was preempted


@scheduling.register("decaying")
class DecayingReserve:
    """First come, first served, with a reserve that decays.

    start: share of the running requests' further output for which room is kept at first; for a newcomer's, all of it.
    least: share that it decays to.
    steps: of the engine until then.
    interval_s: seconds between decisions.
    """

    def __init__(
        self, start: float = 0.7, least: float = 0.1, steps: int = 600, interval_s: float = 0.2
    ) -> None:
        if not 0 <= least <= start <= 1 or steps < 1 or interval_s <= 0:
            raise ValueError(
                "needs 0 ≤ least ≤ start ≤ 1, steps ≥ 1 and interval_s > 0, not "
                f"{least}, {start}, {steps}, {interval_s}"
            )
        self.interval_s = interval_s
        self._start, self._least, self._decay = start, least, (start - least) / steps
        self._share, self._decided_s = start, 0.0

    def choose(self, load: EngineLoad) -> Ints:
        running = np.flatnonzero(load.running)
        # those with the fewest tokens give way, of these the longest prompts
        running = running[np.lexsort((load.tokens[running], -load.received[running]))]
        self._adapt(load, running)
        stay = fit(load, running, overtake=False) if len(running) else running
        share = np.where(load.running, self._share, 1.0)
        to_come = np.maximum(np.minimum(load.longest, LONGEST) - load.received, 0)
        kept = replace(load, tokens=load.tokens + (share * to_come).astype(np.int64))
        queue = np.setdiff1d(np.arange(len(load)), running)
        queue = queue[load.arrival[queue].argsort()]
        room = load.capacity - int(kept.tokens[stay].sum())
        sums = kept.tokens[queue].cumsum()
        count = min(int(sums.searchsorted(room, side="right")), load.places - len(stay))
        return np.concatenate((stay, queue[:count])) if len(stay) or count else queue[:1]

    def _adapt(self, load: EngineLoad, running: Ints) -> None:
        """Let the share decay with the steps since the last decision; set it anew if running requests do not fit."""
        step_s = load.base_s + load.token_s * len(running)
        self._share -= self._decay * (load.now_s - self._decided_s) / step_s
        self._share, self._decided_s = max(self._share, self._least), load.now_s
        if not len(running):
            self._share = self._start
        elif int(load.tokens[running].sum()) > load.capacity:
            begun = int(load.received[running].sum()) + AHEAD * len(running)
            self._share = min(1.0, max(self._least, begun / int(load.longest[running].sum())))
