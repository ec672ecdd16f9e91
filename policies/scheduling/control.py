"""Scheduling control: when the policy is called, with which state, and what follows for each session.

One control for every engine: it sees sessions and memory through two small views and knows neither blocks nor tensors.
It decides only under stress, while sessions wait or are paused; otherwise all run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tandem.policies.estimators.step_time import StepTimeModel
from tandem.policies.reader.quality import Reader
from tandem.policies.scheduling.base import EngineLoad, Ints, SchedulingPolicy, fit

REFERENCE_RATE = 5.0  # tokens/s assumed for clients without a reader
SOON = 0.25  # share of the policy's interval: under stress a change brings the next decision forward to this
FADE = 0.95  # weight of all earlier outputs in their mean length


class SessionView(Protocol):
    """A session as the control sees it; the control sets `paused` and `rank`.

    number: order of opening.
    opened_s: when it was opened, or its request's session before it.
    reader: of its output.
    fresh: whether it has had no token since it was admitted.
    paused: whether it must not run now.
    rank: priority if not all can run, the lowest first.
    wanting: whether it has work; otherwise its client must ask first.
    admitted: whether it holds KV cache.
    received, longest: output tokens so far, and at most.
    missing: tokens to compute or swap in before it decodes.
    stored: leading tokens that lie in host memory.
    """

    number: int
    opened_s: float
    reader: Reader
    fresh: bool
    paused: bool
    rank: int

    @property
    def wanting(self) -> bool: ...
    @property
    def admitted(self) -> bool: ...
    @property
    def received(self) -> int: ...
    @property
    def longest(self) -> int: ...
    @property
    def missing(self) -> int: ...
    @property
    def stored(self) -> int: ...

    def reach(self, more: int) -> int:
        """Return the tokens that it may hold after `more` output tokens."""
        ...


class MemoryView(Protocol):
    """An engine's memory as the control sees it.

    capacity: tokens of KV cache.
    block_size: tokens per block.
    places: most sessions that may hold blocks at once.
    copy_s: seconds to swap in a token from host memory; infinite without one.
    copy_queue_s: seconds until the queued copies are done.
    """

    @property
    def capacity(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def places(self) -> int: ...
    @property
    def copy_s(self) -> float: ...
    @property
    def copy_queue_s(self) -> float: ...


class SchedulingControl:
    """Applies one policy to the sessions of one engine. Times are seconds of the caller's clock.

    decisions: number of decisions so far.
    """

    def __init__(
        self, policy: SchedulingPolicy, memory: MemoryView, step_time: StepTimeModel, max_running: int
    ) -> None:
        """max_running: most sessions in a step."""
        self.decisions = 0
        self._policy, self._memory, self._step_time = policy, memory, step_time
        self._max_running = max_running
        self._due_at = self._soon_at = 0.0
        self._changed = False
        self._newest = 0  # the newest session at the last decision
        self._mean_output = 0.0  # tokens; 0 before the first output has ended

    def changed(self) -> None:
        """Note that sessions came, went or got new work: decide before the next step."""
        self._changed = True

    def ended(self, output_tokens: int) -> None:
        """Record that an output has ended after `output_tokens`."""
        earlier = self._mean_output or output_tokens
        self._mean_output = FADE * earlier + (1 - FADE) * output_tokens
        self._changed = True

    def due_s(self, sessions: Sequence[SessionView], now_s: float) -> float | None:
        """Return the seconds until the next decision; None while none is paused and nothing changed."""
        if not self._changed and not any(s.paused for s in sessions):
            return None
        return max(0.0, self._next_at(sessions) - now_s)

    def _next_at(self, sessions: Sequence[SessionView]) -> float:
        """Return when to decide next: at once if the running sessions have gone and others could run."""
        if not self._changed:
            return self._due_at
        if any(s.paused for s in sessions) and all(s.paused for s in sessions if s.wanting):
            return 0.0
        return self._soon_at

    def decide(self, sessions: Sequence[SessionView], now_s: float) -> None:
        """Decide if a decision is due: set every session's `paused` and `rank`."""
        newest = max((s.number for s in sessions if s.wanting), default=0)
        if now_s < self._next_at(sessions) and newest <= self._newest:
            return  # new sessions do not run before the policy has seen them
        self._newest = max(self._newest, newest)
        self._changed = False
        self._due_at = now_s + self._policy.interval_s
        wanting = []
        for s in sessions:
            if s.wanting:
                wanting.append(s)
            else:  # it may prefill where there is room
                s.paused, s.rank = False, s.number
        if len(wanting) <= self._max_running and all(s.admitted for s in wanting):
            for s in wanting:
                s.paused = False
            return
        self._soon_at = now_s + SOON * self._policy.interval_s
        load = self._load(wanting, now_s)
        chosen = self._keep_fresh(load, wanting, self._policy.choose(load)).tolist()
        self.decisions += 1
        running = set(chosen)
        for rank, i in enumerate(chosen):
            wanting[i].paused, wanting[i].rank = False, rank
        rest = [s for i, s in enumerate(wanting) if i not in running]
        rest.sort(key=lambda s: s.reader.dry_s(now_s))  # the fullest buffer gives way first
        for rank, s in enumerate(rest, len(wanting)):
            s.paused, s.rank = True, rank

    def _keep_fresh(self, load: EngineLoad, wanting: Sequence[SessionView], chosen: Ints) -> Ints:
        """Return `chosen` with fresh sessions kept until their next token, whatever the policy says: else all could
        give way to each other for ever."""
        fresh = [i for i, s in enumerate(wanting) if s.admitted and s.fresh and not s.paused]
        if not fresh:
            return chosen
        kept = set(fresh)
        order = np.array([*fresh, *(i for i in chosen.tolist() if i not in kept)])
        return fit(load, order)

    def _load(self, wanting: Sequence[SessionView], now_s: float) -> EngineLoad:
        memory, step_time = self._memory, self._step_time
        size, interval_s = memory.block_size, self._policy.interval_s
        ahead = int(interval_s / step_time.step_s(min(len(wanting), self._max_running))) + 1
        tokens = np.array([s.reach(ahead) for s in wanting])
        missing = np.array([s.missing for s in wanting])
        longest = np.array([s.longest for s in wanting])
        opened_s = np.array([s.opened_s for s in wanting])
        return EngineLoad(
            arrival=np.lexsort((np.array([s.number for s in wanting]), opened_s)).argsort(),
            age_s=now_s - opened_s,
            received=np.array([s.received for s in wanting]),
            rate=np.array([s.reader.rate for s in wanting]),
            buffer=np.array([s.reader.buffer(now_s) for s in wanting]),
            running=np.array([s.admitted and not s.paused for s in wanting]),
            tokens=-(-tokens // size) * size,
            longest=longest,
            missing=missing,
            stored=np.minimum(missing, [s.stored for s in wanting]),
            capacity=memory.capacity,
            places=min(self._max_running, memory.places),
            now_s=now_s,
            interval_s=interval_s,
            base_s=step_time.base_s,
            token_s=step_time.token_s,
            copy_s=memory.copy_s,
            copy_queue_s=memory.copy_queue_s,
            expected=self._mean_output or float(longest.mean()),
        )
