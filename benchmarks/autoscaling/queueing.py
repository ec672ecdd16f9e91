"""A pool of servers as queues, some twenty times faster than the whole simulator.

Steps are the simulator's: the same timer, prompts in order of arrival in chunks beside decoding, a token a step for
every session that decodes, the shortest queue for who comes, and the simulator's own `ServerPool` that starts and
drains servers. Left out is what hardly shows below overload: preemption, the router's delay, and the growth of chunks
with readers' slack. `tests/benchmarks/autoscaling/test_queueing.py` compares the two.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from tandem.policies.autoscaling import Autoscaler, ReplicaState
from tandem.policies.reader.quality import stall_s
from tandem.simulator.clock import Handle, VirtualLoop
from tandem.simulator.config.servers import TargetGroup, TimedEngineConfig
from tandem.simulator.hardware import StepTimer
from tandem.simulator.workload import Request
from tandem.simulator.world.pool import ServerPool

ROUGH = 2048  # tokens of context that make no difference to a step
SLOW_S = 1 / 15  # a step in which the fastest readers read more than a token


class Limits(NamedTuple):
    """Limits of a server.

    places: sessions in a step.
    budget: positions in a step.
    chunk: positions of prompts in a step that decodes as well.
    kv_tokens: of its KV cache.
    """

    places: int
    budget: int
    chunk: int
    kv_tokens: int


@dataclass(slots=True, eq=False)
class Session:
    """A request's session.

    missing: tokens of the prompt that are not computed; computed: those that are.
    output: tokens of the answer left.
    begun: number of the server's step that gave the first of them.
    times_s: arrival times of tokens at servers before.
    late_s: most that a token was late for its reader, as far as seen.
    """

    request: Request
    missing: int
    output: int
    computed: int = 0
    begun: int = 0
    times_s: array[float] = field(default_factory=lambda: array("d"))
    late_s: float = 0.0


class QueueServer:
    """A server. See `PooledServer`."""

    def __init__(
        self,
        name: str,
        loop: VirtualLoop,
        timer: StepTimer,
        decode_s: Callable[[int, int], float],
        limits: Limits,
        ended: Callable[[Session], None],
    ) -> None:
        """decode_s: seconds of a step without prompts, given how many decode, and tokens of context.
        ended: takes its sessions at their end.
        """
        self.name, self.group, self.up, self.alive = name, 0, True, True
        self._loop, self._timer, self._limits, self._ended = loop, timer, limits, ended
        self._waiting: deque[Session] = deque()
        self._decoding: list[tuple[int, int, Session]] = []  # by the step of their last token
        self._order = 0
        self._context = 0  # tokens of those
        self._reading = 0.0  # tokens/s of all readers
        self._step_ends = array("d")  # of every step
        self._handle: Handle | None = None
        self._alike: tuple[float, float, int] | None = (
            None  # steps without prompts: since, seconds of each, how many
        )
        self._chunks: list[tuple[Session, int]] = []  # of the present step
        self._prefilled = self._generated = 0
        self._slowed = False  # whether a reader may have nothing to read
        self._decode_s = decode_s
        self._times = timer.step_s(1, 1, 1000), timer.step_s(2048, 0, 0, [(2048, 0)]) / 2048

    @property
    def open_sessions(self) -> int:
        return len(self._waiting) + len(self._decoding)

    def submit(self, session: Session) -> None:
        """Take a session."""
        self._waiting.append(session)
        self._reading += session.request.reader_rate
        if self._handle is None:
            self._handle = self._loop.call_soon(self._step)
        elif self._alike is not None:
            since_s, each_s, count = self._alike
            soon = int((self._loop.time() - since_s) / each_s) + 1
            if soon < count:
                self._alike = since_s, each_s, soon
                self._handle.cancel()
                self._handle = self._loop.call_at(since_s + soon * each_s, self._end)

    def take_all(self) -> list[Session]:
        """End; return its sessions, which have to compute again what they had."""
        if self._handle is not None:
            self._handle.cancel()
        passed = self._passed()
        left = list(self._waiting)
        for session in left:
            session.missing += session.computed
        for end, _, session in self._decoding:
            got = len(self._step_ends) - session.begun
            session.times_s += self._step_ends[session.begun :]
            if self._alike is not None:
                since_s, each_s, _ = self._alike
                session.times_s.extend(since_s + (i + 1) * each_s for i in range(passed))
            session.missing = session.computed + got + passed
            session.output = end - len(self._step_ends) - passed + 1
            left.append(session)
        for session in left:
            session.computed = 0
        self._waiting.clear()
        self._decoding.clear()
        self.alive = self.up = False
        return [session for session in left if session.output > 0]

    def state(self, places: int) -> ReplicaState:
        """Return what it reports for autoscaling."""
        passed = self._passed()
        decoded = passed * len(self._decoding)
        held = self._context + decoded
        backlog = 0
        for session in self._waiting:
            held += session.computed
            backlog += session.missing
        base_s, token_s = self._times
        return ReplicaState(
            self.name,
            sessions=self.open_sessions,
            backlog=backlog,
            reading=self._reading,
            starving=self._starving(passed) if self._slowed else 0,
            kv_wanted=held + backlog,
            kv_capacity=self._limits.kv_tokens,
            places=places,
            prefilled=self._prefilled,
            generated=self._generated + decoded,
            base_s=base_s,
            token_s=token_s,
        )

    def _starving(self, passed: int) -> int:
        """Return how many readers have nothing to read; none has until a step was slow again."""
        now_s, done, starving = self._loop.time(), len(self._step_ends) + passed, 0
        for _, _, session in self._decoding:
            got = done - session.begun + len(session.times_s)
            first_s = session.times_s[0] if session.times_s else self._step_ends[session.begun]
            late_s = now_s - first_s - got / session.request.reader_rate
            if late_s > session.late_s:
                starving += 1
                session.late_s = late_s
        self._slowed = starving > 0
        return starving

    def _passed(self) -> int:
        """Return how many of the present steps, all alike, are over."""
        if self._alike is None:
            return 0
        since_s, each_s, count = self._alike
        return min(count, int((self._loop.time() - since_s) / each_s + 1e-9))

    def _step(self) -> None:
        """Begin the next step, or as many alike as there are before anything changes."""
        decoding, limits = len(self._decoding), self._limits
        self._alike, self._chunks, self._handle = None, [], None
        left = limits.budget - decoding
        if decoding:
            left = min(left, limits.chunk)
        places = limits.places - decoding
        for session in self._waiting:
            if left <= 0 or places <= 0:
                break
            grant = min(left, session.missing)
            self._chunks.append((session, grant))
            left -= grant
            places -= 1
        if self._chunks:
            prefills = [(grant, session.computed) for session, grant in self._chunks]
            tokens = decoding + sum(grant for grant, _ in prefills)
            seconds = self._timer.step_s(tokens, decoding, self._context, prefills)
            self._slowed = self._slowed or seconds > SLOW_S
            self._handle = self._loop.call_later(seconds, self._end)
        elif decoding:
            count = self._decoding[0][0] - len(self._step_ends) + 1
            context = self._context + decoding * count // 2
            each_s = self._decode_s(decoding, context // ROUGH * ROUGH)
            self._slowed = self._slowed or each_s > SLOW_S
            self._alike = self._loop.time(), each_s, count
            self._handle = self._loop.call_later(count * each_s, self._end)

    def _end(self) -> None:
        """End a step, or some alike."""
        now_s, decoding = self._loop.time(), len(self._decoding)
        count = 1 if self._alike is None else self._alike[2]
        if self._alike is None or count == 1:
            self._step_ends.append(now_s)
        else:
            since_s, each_s, _ = self._alike
            self._step_ends.frombytes((since_s + each_s * np.arange(1, count + 1)).tobytes())
        self._generated += count * decoding
        self._context += count * decoding
        while self._decoding and self._decoding[0][0] < len(self._step_ends):
            self._finish(heappop(self._decoding)[2])
        for session, grant in self._chunks:
            session.missing -= grant
            session.computed += grant
            self._prefilled += grant
            if not session.missing:
                self._waiting.popleft()
                self._begin(session)
        self._step()

    def _begin(self, session: Session) -> None:
        """Note the first token of a session."""
        session.begun = len(self._step_ends) - 1
        self._context += session.computed
        self._generated += 1
        last = session.begun + session.output - 1
        self._order += 1
        heappush(self._decoding, (last, self._order, session))
        if session.output == 1:
            self._decoding.remove((last, self._order, session))
            heapify(self._decoding)
            self._finish(session)

    def _finish(self, session: Session) -> None:
        session.times_s += self._step_ends[session.begun : session.begun + session.output]
        self._context -= session.computed + max(0, session.output - 1)
        self._reading -= session.request.reader_rate
        self._ended(session)


@dataclass(slots=True)
class Outcome:
    """Outcome of a run, counted from its `since_s` on.

    replica_s: seconds of servers' lives.
    ttft_s, stall_s: of every answer to who came since.
    """

    replica_s: float
    ttft_s: list[float] = field(default_factory=list)
    stall_s: list[float] = field(default_factory=list)

    @property
    def p99_s(self) -> float:
        """Return P99 of TTFT."""
        return float(np.percentile(self.ttft_s, 99))

    @property
    def stall_mean_s(self) -> float:
        return float(np.mean(self.stall_s))


class QueueingCloud:
    """The servers, and who comes to them. See `SimulatedCloud`."""

    def __init__(self, timer: StepTimer, limits: Limits) -> None:
        self.loop = VirtualLoop()  # type: ignore[abstract]  # it has no sockets, threads or signals
        self.servers: list[QueueServer] = []
        self.ended: list[Session] = []
        self._timer, self._limits = timer, limits
        self._decode_s = cache(lambda decoding, context: timer.step_s(decoding, decoding, context))

    def add_server(self, g: int) -> QueueServer:
        name = f"server-{len(self.servers)}"
        self.servers.append(
            QueueServer(name, self.loop, self._timer, self._decode_s, self._limits, self.ended.append)
        )
        return self.servers[-1]

    async def end(self, server: QueueServer) -> None:
        for session in server.take_all():
            self.submit(session)

    def refresh(self) -> None:
        """Do nothing: whoever comes sees what is up."""

    def waiting(self, pool: str) -> float:
        return 0.0

    def submit(self, session: Session) -> None:
        """Send a session to the server with the fewest."""
        up = [server for server in self.servers if server.up]
        counts = [server.open_sessions for server in up]
        up[counts.index(min(counts))].submit(session)


def simulate(
    requests: Sequence[Request],
    group: TargetGroup,
    span_s: float,
    since_s: float = 0.0,
    autoscaler: Autoscaler | None = None,
) -> Outcome:
    """Run requests through a pool.

    group: its hardware, size and times; with neither `autoscaling` nor an autoscaler it stays as large as it is.
    span_s: until when requests come, and replicas are paid for.
    since_s: from when on they are counted.
    autoscaler: decides in place of the group's.
    """
    timer, engine = group.timer(None), group.complete_engine(None)
    assert isinstance(engine, TimedEngineConfig)
    assert group.autoscaling is not None or autoscaler is None, "the bounds are the group's"
    chunk = engine.batching.parameters["chunk"]
    limits = Limits(engine.batch_limit, engine.token_budget, chunk, engine.kv_tokens)
    cloud = QueueingCloud(timer, limits)
    for _ in range(group.initial_count):
        cloud.add_server(0)
    pool = None if group.autoscaling is None else ServerPool(cloud, 0, group, engine.batch_limit, autoscaler)
    paid: list[float] = []

    def pay() -> None:
        paid.append(group.count * cloud.loop.time() if pool is None else pool.replica_s())

    async def run() -> None:
        cloud.loop.call_at(since_s, pay)
        for request in requests:
            await asyncio.sleep(request.arrival_s - cloud.loop.time())
            cloud.submit(Session(request, request.prompt_tokens, request.output_tokens))
            if pool is not None:
                pool.wake()
        await asyncio.sleep(span_s - cloud.loop.time())
        pay()
        while len(cloud.ended) < len(requests):  # noqa: ASYNC110, in virtual time
            await asyncio.sleep(1.0)

    cloud.loop.run(run())
    outcome = Outcome(paid[1] - paid[0])
    for session in cloud.ended:
        if session.request.arrival_s >= since_s:
            outcome.ttft_s.append(session.times_s[0] - session.request.arrival_s)
            outcome.stall_s.append(stall_s(session.times_s, session.request.reader_rate))
    return outcome
