"""Asks the scheduling policy who shall run, and lets the engine's memory know.

Only under stress: while somebody waits or is paused. Otherwise everybody runs, and nothing is decided.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from engine.base import EngineStats
from engine.memory import Memory
from engine.sequence import Sequence
from policies.pace import Pace
from policies.scheduling import Ints, Load, SchedulingPolicy, fit

SOON = (
    0.25  # of the policy's interval: under stress, who comes or goes makes it decide earlier, but no sooner
)
_FADE = 0.95  # weight of all earlier outputs in their mean length


class Schedule:
    """policy: who runs. max_running: sessions that take part in a step at most. clock: seconds."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        memory: Memory,
        pace: Pace,
        stats: EngineStats,
        max_running: int,
        clock: Callable[[], float],
    ) -> None:
        self._policy, self._memory, self._pace, self._stats = policy, memory, pace, stats
        self._max_running, self._clock = max_running, clock
        self._due_at = self._soon_at = 0.0
        self._changed = False
        self._expected = 0.0  # output tokens; 0: none has come to its end

    def changed(self) -> None:
        """Somebody came, went or got new work: decide before the next step."""
        self._changed = True

    def ended(self, output_tokens: int) -> None:
        """An output came to its end."""
        earlier = self._expected or output_tokens
        self._expected = _FADE * earlier + (1 - _FADE) * output_tokens
        self._changed = True

    @property
    def due_s(self) -> float | None:
        """Seconds until the next decision; None while nobody is paused."""
        if not self._changed and not any(s.paused for s in self._memory.sequences.values()):
            return None
        return max(0.0, (self._soon_at if self._changed else self._due_at) - self._clock())

    def decide(self) -> None:
        """Decide, if it is time to."""
        now = self._clock()
        if now < (self._soon_at if self._changed else self._due_at):
            return
        self._changed = False
        self._due_at = now + self._policy.interval_s
        wanting = []
        for s in self._memory.sequences.values():
            if s.task is not None:
                wanting.append(s)
            else:  # its client is to ask first; it may prefill where there is room
                s.paused, s.rank = False, s.number
        if len(wanting) <= self._max_running and all(s.admitted for s in wanting):
            for s in wanting:
                s.paused = False
            return
        self._soon_at = now + SOON * self._policy.interval_s
        begin = time.thread_time()  # not what other threads take meanwhile
        load = self._load(wanting, now)
        chosen = self._kept(load, wanting, self._policy.choose(load)).tolist()
        self._stats.decisions += 1
        self._stats.decision_s += time.thread_time() - begin
        running = set(chosen)
        for rank, i in enumerate(chosen):
            wanting[i].paused, wanting[i].rank = False, rank
        rest = [s for i, s in enumerate(wanting) if i not in running]
        rest.sort(key=lambda s: s.reader.dry_s(now))  # the fullest buffer gives way first
        for rank, s in enumerate(rest, len(wanting)):
            s.paused, s.rank = True, rank

    def _kept(self, load: Load, wanting: list[Sequence], chosen: Ints) -> Ints:
        """Whoever has just come (back) keeps its place until it has its next token, whatever the policy says: else all
        could give way to each other for ever."""
        kept = [i for i, s in enumerate(wanting) if s.admitted and s.fresh and not s.paused]
        if not kept:
            return chosen
        order = np.array([*kept, *(i for i in chosen.tolist() if i not in kept)])
        return fit(load, order)

    def _load(self, wanting: list[Sequence], now: float) -> Load:
        memory, pace = self._memory, self._pace
        size, tier = memory.pool.block_size, memory.tier
        interval_s = self._policy.interval_s
        ahead = int(interval_s / pace.step_s(min(len(wanting), self._max_running))) + 1
        tokens = [s.reach(ahead) for s in wanting]
        missing = [max(0, len(s.tokens) - s.computed) if not s.admitted else s.pending - 1 for s in wanting]
        return Load(
            arrival=np.array([s.number for s in wanting]),
            age_s=np.array([now - s.opened_s for s in wanting]),
            received=np.array([s.output_len for s in wanting]),
            rate=np.array([s.reader.rate for s in wanting]),
            buffer=np.array([s.reader.buffer(now) for s in wanting]),
            running=np.array([s.admitted and not s.paused for s in wanting]),
            tokens=-(-np.array(tokens) // size) * size,
            longest=np.array([s.sampling.max_tokens for s in wanting]),
            missing=np.array(missing),
            stored=np.array([min(s.stored, m) for s, m in zip(wanting, missing, strict=True)]),
            capacity=memory.pool.num_blocks * size,
            places=min(self._max_running, memory.max_sessions),
            interval_s=interval_s,
            base_s=pace.base_s,
            token_s=pace.token_s,
            copy_s=float("inf") if tier is None else tier.block_s / size,
            copy_queue_s=0.0 if tier is None else tier.queue_s,
            expected=self._expected or float(np.mean([s.sampling.max_tokens for s in wanting])),
        )
