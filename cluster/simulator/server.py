"""A server of the cloud pool: a batched engine over one model, in virtual time.

It works as the live engine does: sessions are admitted while there are places and KV blocks, each step a
batching policy grants positions, a hardware model says how long the step takes, and sessions whose window
was completed go on. Where the KV cache is full, the youngest give way and are recomputed later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from cluster.simulator.core import Event, Process, Simulation
from cluster.simulator.hardware import StepTimer
from policies.batching import BatchingPolicy, Demand

BLOCK_TOKENS = 16


class CacheTooSmall(ValueError):
    """A single session needs more KV cache than the server has."""


class Session:
    """One request's place at one server.

    computed: tokens in the KV cache; pending: positions to compute before `event` fires, the last `window`
    of them in one step; drafting: draft steps of a co-located drafter that precede the window. What gave way
    left `cached` blocks behind, which are overwritten from the time on that `evicted_at` blocks were taken.
    """

    __slots__ = (
        "admitted",
        "blocks",
        "cached",
        "computed",
        "demand",
        "drafting",
        "event",
        "evicted_at",
        "number",
        "pending",
        "window",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.computed = self.pending = self.window = self.drafting = self.blocks = 0
        self.cached = self.evicted_at = 0
        self.admitted = False
        self.event: Event | None = None
        self.demand = _NOTHING


_NOTHING = Demand(0, 0, 0)


class Server:
    """timer: how long a step takes; batching: who is computed in it.

    token_budget: positions a step; max_sessions: sessions that hold KV cache at once; kv_tokens: its size,
    None for no limit; draft_timer: of a small model that shares the hardware, for fused speculation;
    padded: a batch costs what its longest sequence and its longest window would cost everybody;
    first_apart: on an idle server the first token takes a step of its own after the prompt's, as in an engine that
    takes prompts in as soon as they are opened and is asked for tokens only then (the torch engine of Tandem is
    one). A busy one has heard of both before its next step begins;
    call_s: beside its steps, what it takes to open a session and have its first token: wire, threads.
    """

    __slots__ = (
        "_admitted",
        "_arrivals",
        "_batch_limit",
        "_batching",
        "_busy",
        "_call_s",
        "_draft_timer",
        "_first_apart",
        "_free_blocks",
        "_numbers",
        "_padded",
        "_ready",
        "_simulation",
        "_taken_blocks",
        "_timer",
        "_token_budget",
        "_waiting",
        "busy_s",
        "max_sessions",
        "name",
        "open_sessions",
        "preempted",
        "steps",
        "tokens",
    )

    def __init__(
        self,
        simulation: Simulation,
        name: str,
        timer: StepTimer,
        batching: BatchingPolicy,
        *,
        token_budget: int = 2048,
        max_sessions: int = 256,
        kv_tokens: int | None = None,
        draft_timer: StepTimer | None = None,
        padded: bool = False,
        first_apart: bool = False,
        call_s: float = 0.0,
    ) -> None:
        self.name, self.max_sessions = name, max_sessions
        self._simulation, self._timer, self._draft_timer, self._batching = (
            simulation,
            timer,
            draft_timer,
            batching,
        )
        self._token_budget, self._padded, self._first_apart = token_budget, padded, first_apart
        self._call_s = call_s
        self._batch_limit = min(max_sessions, batching.size or max_sessions)
        self._free_blocks = None if kv_tokens is None else kv_tokens // BLOCK_TOKENS
        self._waiting: deque[Session] = deque()  # with work, without a place
        self._admitted: dict[int, Session] = {}  # by number
        self._ready: list[Session] = []  # admitted, with work
        self._busy = False
        self._numbers = self._arrivals = self._taken_blocks = 0
        self.open_sessions = self.steps = self.tokens = self.preempted = 0
        self.busy_s = 0.0

    @property
    def queue(self) -> float:
        """Open sessions in relation to those that one step takes; above 1, they wait for each other."""
        return self.open_sessions / self._batch_limit

    @property
    def drafts(self) -> bool:
        """Whether a co-located drafter is there."""
        return self._draft_timer is not None

    def open(self, rate: float = 0.0, longest: int = 1) -> Session:
        """A new session; it gets a place with its first work. For servers that schedule by it, rate: of its reader,
        tokens/s; longest: output tokens that its client allows (here: has)."""
        self._numbers += 1
        self.open_sessions += 1
        return Session(self._numbers)

    def close(self, session: Session) -> None:
        """End a session that has no work left."""
        if session.event is not None:
            raise RuntimeError("a session is closed when its work is done")
        self.open_sessions -= 1
        self._release(session)

    def cancel(self, session: Session) -> None:
        """End a session whatever it is doing; what it waits for never happens."""
        if session.event is not None:
            session.event = None
            session.pending = 0
            for line in (self._ready, self._waiting):
                if session in line:
                    line.remove(session)
        self.close(session)
        if not self._busy:  # else whoever waits for its place is seen to at the step's end
            self._step()

    def work(self, session: Session, tokens: int, window: int, drafting: int = 0) -> Event:
        """Compute `tokens` more positions, the last `window` in one step; the event fires when that is done.

        drafting: steps of the co-located drafter that come first in that step (fused speculation).
        """
        self._arrivals += 1
        session.pending += tokens
        session.window, session.drafting = window, drafting
        session.demand = Demand(session.pending, window, self._arrivals, session.computed)
        session.event = event = Event()
        if session.admitted:
            self._ready.append(session)
        else:
            self._waiting.append(session)
        if not self._busy:
            self._step()
        return event

    def first_token(self, session: Session, prompt: int) -> Process:
        """Take the prompt in and compute the token after it."""
        if self._first_apart and prompt > 1 and not self._busy:
            yield self.work(session, prompt - 1, 0)
            yield self.work(session, 1, 1)
        else:
            yield self.work(session, prompt, 1)
        if self._call_s:
            yield self._simulation.now + self._call_s

    def roll_back(self, session: Session, tokens: int) -> None:
        """Keep the first `tokens` tokens of the session's KV cache."""
        session.computed = tokens
        if self._free_blocks is not None:
            surplus = session.blocks - -(-tokens // BLOCK_TOKENS)
            if surplus > 0:
                session.blocks -= surplus
                self._free_blocks += surplus

    def _step(self) -> None:
        """Begin the next step, if anybody has work."""
        if self._waiting:
            self._admit()
        chosen: list[tuple[Session, int]] = []
        while (
            self._ready and not chosen
        ):  # more than once where all gave way to some that were granted nothing
            grants = self._batching.form([s.demand for s in self._ready], self._token_budget)
            chosen = [(s, g) for s, g in zip(self._ready, grants, strict=True) if g]
            if self._free_blocks is not None:
                chosen = self._make_room(chosen)
        self._busy = bool(chosen)
        if not chosen:
            return
        duration_s = self._duration_s(chosen)
        self.steps += 1
        self.busy_s += duration_s
        self._simulation.at(self._simulation.now + duration_s, self._end, chosen)

    def _duration_s(self, chosen: list[tuple[Session, int]]) -> float:
        tokens = sequences = context = longest = widest = drafting = drafters = draft_context = 0
        prefills: list[tuple[int, int]] = []
        for s, grant in chosen:
            tokens += grant
            if grant == s.window:
                sequences += 1
                context += s.computed
                longest = max(longest, s.computed)
                widest = max(widest, grant)
            else:
                prefills.append((grant, s.computed))
            if s.drafting and grant == s.pending:
                drafters += 1
                drafting = max(drafting, s.drafting)
                draft_context += s.computed
        self.tokens += tokens
        if self._padded:
            context = sequences * longest
            tokens = sequences * widest + sum(chunk for chunk, _ in prefills)
        duration_s = self._timer.step_s(tokens, sequences, context, prefills)
        if drafting and self._draft_timer is not None:
            duration_s += drafting * self._draft_timer.step_s(drafters, drafters, draft_context)
        return duration_s

    def _end(self, chosen: list[tuple[Session, int]]) -> None:
        """The step is over: those who have what they asked for go on, and the next step begins."""
        done = []
        for s, grant in chosen:
            if s.event is None:
                continue  # cancelled meanwhile
            s.computed += grant
            s.pending -= grant
            if s.pending:
                s.demand = replace(s.demand, pending=s.pending, context=s.computed)
            else:
                done.append(s)
        if done:
            self._ready = [s for s in self._ready if s.pending]
        for s in done:
            event, s.event = s.event, None
            assert event is not None
            event.fire()
        self._step()

    # -- places and KV blocks -------------------------------------------------------------------------

    def _admit(self) -> None:
        waiting = self._waiting
        while waiting and len(self._admitted) < self.max_sessions:
            s = waiting[0]
            if self._free_blocks is not None:
                kept = self._still_cached(s)
                need = -(-(kept + min(s.pending - kept, self._token_budget)) // BLOCK_TOKENS)
                if need > self._free_blocks:
                    if not self._admitted:
                        raise CacheTooSmall(f"{self.name}: {s.pending} tokens do not fit into the KV cache")
                    return
                self._take(s, need)
                if kept:
                    s.computed = kept
                    s.pending -= kept
                    s.demand = replace(s.demand, pending=s.pending, context=kept)
                s.cached = 0
            waiting.popleft()
            s.admitted = True
            self._admitted[s.number] = s
            self._ready.append(s)

    def _make_room(self, chosen: list[tuple[Session, int]]) -> list[tuple[Session, int]]:
        """Blocks for every grant, the oldest sessions first; the idle, then the youngest give way, even if they
        were granted something and those before them nothing."""
        placed: list[tuple[Session, int]] = []
        assert self._free_blocks is not None
        for s, grant in sorted(chosen, key=lambda item: item[0].number):
            if not s.admitted:
                continue  # gave way to an older one
            need = -(-(s.computed + grant) // BLOCK_TOKENS) - s.blocks
            while need > self._free_blocks and s.admitted:
                self._preempt(self._victim(s))
            if s.admitted:
                self._take(s, max(0, need))
                placed.append((s, grant))
        if not placed and not self._ready:
            raise CacheTooSmall(f"{self.name}: the KV cache is too small for a single session")
        return placed

    def _victim(self, needy: Session) -> Session:
        idle = [s for s in self._admitted.values() if not s.pending]
        return max(idle or (s for s in self._admitted.values() if s.number >= needy.number), key=_age)

    def _take(self, s: Session, blocks: int) -> None:
        assert self._free_blocks is not None
        s.blocks += blocks
        self._free_blocks -= blocks
        self._taken_blocks += blocks

    def _preempt(self, s: Session) -> None:
        self.preempted += 1
        assert self._free_blocks is not None
        s.cached = s.computed // BLOCK_TOKENS
        s.evicted_at = self._taken_blocks + self._free_blocks  # blocks that are free already are taken first
        lost, waiting = s.computed, s.pending > 0
        self._release(s)
        s.pending += lost
        if waiting:
            s.demand = replace(s.demand, pending=s.pending, context=0)
            self._ready.remove(s)
            self._waiting.appendleft(s)

    def _still_cached(self, s: Session) -> int:
        """Tokens that a session which gave way finds in the prefix cache when it comes back."""
        left = s.cached - max(0, self._taken_blocks - s.evicted_at)
        return max(0, min(left * BLOCK_TOKENS, s.pending - s.window))

    def _release(self, s: Session) -> None:
        if self._free_blocks is not None:
            self._free_blocks += s.blocks
        s.blocks = s.computed = 0
        s.admitted = False
        self._admitted.pop(s.number, None)


def _age(s: Session) -> int:
    return s.number
