"""A server whose requests are scheduled: a policy decides who runs, and host memory is the KV cache's second tier.

The live engine's counterpart is `engine.schedule` and `engine.memory`; both ask the same policy objects. Transfers
take their time on a link each way, writing through keeps what a request has computed in host memory, and whoever
comes back is loaded or computed again, whichever is sooner.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cluster.simulator.core import Simulation
from cluster.simulator.hardware import StepTimer
from cluster.simulator.server import BLOCK_TOKENS, CacheTooSmall, Server, Session
from policies.batching import BatchingPolicy
from policies.pace import Pace
from policies.quality import Reader
from policies.scheduling import Load, SchedulingPolicy

SOON = 0.25  # of the policy's interval: who comes or goes makes it decide earlier, but no sooner (as live)
_FADE = 0.95


@dataclass(frozen=True, slots=True)
class HostTier:
    """tokens: that host memory holds. token_s: to copy the KV cache of one, either way. write_through: what is computed
    is copied while the engine works; else when it has to leave. overlap: loading does not wait for leaving."""

    tokens: int
    token_s: float
    write_through: bool = True
    overlap: bool = True


class Reading(Session):
    """A session with its reader. rank, paused: see the live engine; stored: tokens in host memory; ready_at: when it
    has been loaded; fresh: no token since it was let in."""

    __slots__ = ("fresh", "longest", "opened_s", "paused", "rank", "reader", "ready_at", "stored")

    def __init__(self, number: int, rate: float, longest: int, now: float) -> None:
        super().__init__(number)
        self.longest = longest
        self.reader, self.opened_s, self.rank = Reader(rate), now, number
        self.paused, self.fresh = True, True
        self.stored, self.ready_at = 0, 0.0


class ScheduledServer(Server):
    """scheduling: who runs; max_running: at once; tier: None for none; rate: tokens/s of a reader who did not say.
    Further arguments as of Server; it needs a limit of kv_tokens."""

    __slots__ = (
        "_back_until",
        "_changed",
        "_due_at",
        "_expected",
        "_out_until",
        "_pace",
        "_policy",
        "_rate",
        "_sessions",
        "_soon_at",
        "_stored",
        "_tier",
        "_waking_at",
        "loaded",
        "recomputed",
    )

    def __init__(
        self,
        simulation: Simulation,
        name: str,
        timer: StepTimer,
        batching: BatchingPolicy,
        scheduling: SchedulingPolicy,
        *,
        tier: HostTier | None = None,
        rate: float = 5.0,
        kv_tokens: int,
        **settings: Any,
    ) -> None:
        super().__init__(simulation, name, timer, batching, kv_tokens=kv_tokens, **settings)
        self._policy, self._tier, self._rate = scheduling, tier, rate
        self._sessions: dict[int, Reading] = {}
        self._pace = Pace(timer.step_s(1, 1, 256), timer.step_s(512, 0, 0, [(512, 0)]) / 512)
        self._due_at = self._soon_at = self._out_until = self._back_until = 0.0
        self._waking_at = float("inf")
        self._changed, self._expected = False, 0.0
        self._stored = self.loaded = self.recomputed = 0

    def open(self, rate: float = 0.0, longest: int = 1) -> Session:
        self._numbers += 1
        self.open_sessions += 1
        session = Reading(self._numbers, rate or self._rate, longest, self._simulation.now)
        self._sessions[session.number] = session
        self._changed = True
        return session

    def close(self, session: Session) -> None:
        assert isinstance(session, Reading)
        earlier = self._expected or session.reader.received
        self._expected = _FADE * earlier + (1 - _FADE) * session.reader.received
        del self._sessions[session.number]
        self._stored -= session.stored
        self._changed = True
        super().close(session)

    def _step(self) -> None:
        now = self._simulation.now
        self._decide(now)
        running = [s for s in self._sessions.values() if s.event is not None and s.admitted and not s.paused]
        ready: list[Session] = [s for s in running if s.ready_at <= now]
        chosen: list[tuple[Session, int]] = []
        if ready:
            demands = [replace(s.demand, slack=self._slack(s, now)) for s in ready]
            grants = self._batching.form(demands, self._token_budget)
            chosen = self._make_room([(s, g) for s, g in zip(ready, grants, strict=True) if g])
        self._busy = bool(chosen)
        if not chosen:
            self._wake(now, running)
            return
        duration_s = self._duration_s(chosen)
        self._pace.note(sum(g for _, g in chosen), duration_s)
        self.steps += 1
        self.busy_s += duration_s
        self._simulation.at(now + duration_s, self._end, chosen)

    def _slack(self, s: Session, now: float) -> int:
        assert isinstance(s, Reading)
        return max(0, int((s.reader.dry_s(now) - self._pace.base_s) / self._pace.token_s))

    def _wake(self, now: float, running: list[Reading]) -> None:
        """Nothing can be computed: try again when something is loaded or the next decision is due."""
        wanting = any(s.event is not None for s in self._sessions.values())
        if not wanting:
            return
        at = min([s.ready_at for s in running if s.ready_at > now], default=self._due_at)
        at = max(min(at, self._due_at if self._due_at > now else at), now + 1e-4)
        if self._waking_at <= now or at < self._waking_at:
            self._waking_at = at
            self._simulation.at(at, self._woken, None)

    def _woken(self, _: None) -> None:
        self._waking_at = float("inf")
        if not self._busy:
            self._step()

    def _end(self, chosen: list[tuple[Session, int]]) -> None:
        now = self._simulation.now
        for s, grant in chosen:
            assert isinstance(s, Reading)
            if s.event is not None and grant == s.pending:
                s.fresh = False
                if s.window:
                    s.reader.deliver(1, now)
        super()._end(chosen)

    # -- who runs -------------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        if now < (self._soon_at if self._changed else self._due_at):
            return
        self._changed = False
        self._due_at = now + self._policy.interval_s
        wanting = [s for s in self._sessions.values() if s.event is not None]
        if not wanting:
            return
        if all(s.admitted for s in wanting) and len(wanting) <= self.max_sessions:
            for s in wanting:
                s.paused = False
            return
        self._soon_at = now + SOON * self._policy.interval_s
        load = self._load(wanting, now)
        kept = [i for i, s in enumerate(wanting) if s.admitted and s.fresh and not s.paused]
        chosen = kept + [i for i in self._policy.choose(load).tolist() if i not in kept]
        running: list[Reading] = []
        tokens = 0
        for i in chosen:
            tokens += int(load.tokens[i])
            if running and (tokens > load.capacity or len(running) >= load.places):
                break
            running.append(wanting[i])
        for s in wanting:
            s.paused = True
        for rank, s in enumerate(running):
            s.paused, s.rank = False, rank
        rest = sorted((s for s in wanting if s.paused), key=lambda s: s.reader.dry_s(now))
        for rank, s in enumerate(rest, len(running)):
            s.rank = rank
        for s in running:
            if not s.admitted:
                self._let_in(s, now)

    def _load(self, wanting: list[Reading], now: float) -> Load:
        pace, tier = self._pace, self._tier
        ahead = int(self._policy.interval_s / pace.step_s(min(len(wanting), self.max_sessions))) + 1
        tokens = np.array([s.computed + s.pending + ahead for s in wanting])
        longest = np.array([s.longest for s in wanting])
        missing = np.array([max(0, s.pending - s.window) for s in wanting])
        return Load(
            arrival=np.array([s.number for s in wanting]),
            age_s=np.array([now - s.opened_s for s in wanting]),
            received=np.array([s.reader.received for s in wanting]),
            rate=np.array([s.reader.rate for s in wanting]),
            buffer=np.array([s.reader.buffer(now) for s in wanting]),
            running=np.array([s.admitted and not s.paused for s in wanting]),
            tokens=-(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS,
            longest=longest,
            missing=missing,
            stored=np.minimum(missing, [s.stored for s in wanting]),
            capacity=self._blocks * BLOCK_TOKENS,
            places=self.max_sessions,
            interval_s=self._policy.interval_s,
            base_s=pace.base_s,
            token_s=pace.token_s,
            copy_s=float("inf") if tier is None else tier.token_s,
            copy_queue_s=0.0 if tier is None else max(0.0, self._back_until - now),
            expected=self._expected or float(longest.mean()),
        )

    @property
    def _blocks(self) -> int:
        assert self._free_blocks is not None
        return self._free_blocks + sum(s.blocks for s in self._admitted.values())

    # -- memory ---------------------------------------------------------------------------------------

    def _let_in(self, s: Reading, now: float) -> None:
        """Blocks for what it has to compute next, others giving way; loads what host memory holds of it."""
        assert self._free_blocks is not None
        need = -(-(s.computed + s.pending) // BLOCK_TOKENS)
        while need > self._free_blocks:
            idle = [r for r in self._sessions.values() if r.admitted and (r.paused or r.event is None)]
            if not idle:
                if not self._admitted:
                    raise CacheTooSmall(f"{self.name}: {s.pending} tokens do not fit into the KV cache")
                return  # at the next decision
            self._preempt(max(idle, key=_first_to_go))
        if s in self._waiting:
            self._waiting.remove(s)
        self._take(s, need)
        s.admitted = s.fresh = True
        self._admitted[s.number] = s
        stored = min(s.stored, s.pending - s.window)
        self._stored -= s.stored
        s.stored = 0
        tier = self._tier
        if tier is None or stored <= 0:
            s.ready_at = max(now, 0.0 if tier is None else self._out_until)
            return
        # the blocks it gets are free once what left them is in host memory
        begin = max(now, self._back_until, self._out_until)
        done = begin + stored * tier.token_s
        if done - now < stored * self._pace.token_s:
            self._back_until = s.ready_at = done
            if not tier.overlap:
                self._out_until = done
            s.computed = stored
            s.pending -= stored
            s.demand = replace(s.demand, pending=s.pending, context=stored)
            self.loaded += stored
        else:
            s.ready_at = max(now, self._out_until)
            self.recomputed += stored

    def _make_room(self, chosen: list[tuple[Session, int]]) -> list[tuple[Session, int]]:
        placed: list[tuple[Session, int]] = []
        assert self._free_blocks is not None
        for s, grant in sorted(chosen, key=lambda item: item[0].rank):  # type: ignore[attr-defined]
            if not s.admitted:
                continue
            need = max(0, -(-(s.computed + grant) // BLOCK_TOKENS) - s.blocks)
            while need > self._free_blocks and s.admitted:
                self._preempt(self._victim(s))
                self._changed = True
            if s.admitted:
                self._take(s, need)
                placed.append((s, grant))
        return placed

    def _victim(self, needy: Session) -> Session:
        assert isinstance(needy, Reading)
        idle = [s for s in self._admitted.values() if isinstance(s, Reading) and (s.paused or not s.pending)]
        others = idle or [
            s for s in self._admitted.values() if isinstance(s, Reading) and s.rank >= needy.rank
        ]
        return max(others, key=_first_to_go)

    def _preempt(self, s: Session) -> None:
        """It leaves; with a tier, what it has computed stays in host memory as far as there is room."""
        assert isinstance(s, Reading)
        self.preempted += 1
        now, lost, tier = self._simulation.now, s.computed, self._tier
        if tier is not None and lost:
            s.stored = min(lost, tier.tokens - self._stored)
            self._stored += s.stored
            if not tier.write_through:
                self._out_until = max(now, self._out_until) + s.stored * tier.token_s
        self._release(s)
        s.paused = True
        if s.event is not None:
            s.pending += lost
            s.demand = replace(s.demand, pending=s.pending, context=0)
        else:
            s.pending += lost


def _first_to_go(s: Reading) -> tuple[bool, int]:
    return s.paused or s.event is None, s.rank
