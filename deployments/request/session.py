"""Sessions of one request at its endpoints, with their timeouts and their metering."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from tandem.cluster.wire.frames import ProtocolError, Unauthorized, UnknownEngine
from tandem.deployments.request.assignment import Assignment, EndpointInfo, EndpointLost, Loss
from tandem.deployments.request.job import JobStats
from tandem.deployments.request.pools import VERIFIER
from tandem.deployments.request.probes import Probes
from tandem.deployments.request.timeouts import Deadline, Timeouts, always
from tandem.deployments.tracing.trace import Attributes, OperationSpans, Trace, spanned
from tandem.engine.base import (
    Engine,
    EngineError,
    EngineInfo,
    EngineStats,
    EngineStopped,
    Extend,
    Forwarded,
    NoCapacity,
    Operation,
    R,
    Sampling,
    ServiceRefused,
    Session,
    SessionCancelled,
    Tensor,
    TokenLogprob,
    Tokens,
    UnknownSession,
)
from tandem.policies.reader.stall_timeout import PROBE_S, QUIET_S, Pace, Patience

T = TypeVar("T")
ROUNDED_S = 1e-3
"""Less than that is no time to wait for."""


class Trip(NamedTuple):
    """Hidden states' way to an endpoint and back.

    rows: that went there.
    sent_s, came_s: when they left and when the answer was here, on the event loop's clock.
    """

    forwarded: Forwarded
    rows: int
    sent_s: float
    came_s: float


Dial = Callable[[EndpointInfo], Awaitable[Engine]]

# Only this side ends its sessions, so these all mean that the endpoint has restarted. (Another
# token is that of another generation of the application, met while a new one is being deployed.)
GONE = (EngineStopped, SessionCancelled, UnknownSession, UnknownEngine, Unauthorized, ProtocolError)


async def _never(endpoint: EndpointInfo) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Reach:
    """Way in which a process reaches endpoints.

    dial: returns an engine for an endpoint.
    lost: told once of each endpoint that is gone (and did not merely refuse), also if the answer goes on without it.
    probes: ask endpoints that are late.
    replaces: returns whether there is another endpoint by now that can go on in this one's place.
    reached_s: at a device, time since which the cloud can be reached, infinite while it cannot; timeouts there start
        again then.
    """

    dial: Dial
    lost: Callable[[EndpointInfo], object] = lambda _: None
    reached_s: Callable[[], float] = always
    probes: Probes = field(default_factory=Probes)
    replaces: Callable[[EndpointInfo], Awaitable[bool]] = _never


class RequestContext:
    """Shared state of a request's sessions: how endpoints are reached, and the usage.

    timeouts, patience: how long they are waited for.
    stats: seconds spent by stage, tokens taken in and given out, and joules are added to these.
    trace: span below which new sessions have theirs; None where nothing is traced.
    waited_s: seconds that the request has waited in queues which it has left.
    """

    __slots__ = ("loop", "patience", "reach", "stats", "timeouts", "trace", "waited_s")

    def __init__(
        self,
        reach: Reach,
        stats: JobStats,
        timeouts: Timeouts | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.reach, self.stats = reach, stats
        self.timeouts = timeouts or Timeouts()
        self.patience = patience or Patience(self.timeouts.step_s)
        self.loop = asyncio.get_running_loop()
        self.trace: Trace | None = None
        self.waited_s = 0.0


class EndpointSession(Session):
    """A session at an endpoint: dials when opened, applies timeouts, and raises EndpointLost for every failure of the
    endpoint. Its methods are those of `engine.base.Session`.

    expendable: every refusal counts as lost, since the request can do without this endpoint.
    replaceable: whether another endpoint could continue.
    lost: this request does without the endpoint; full: the endpoint had no room; refused: its service serves nothing.
    took_s: how long the last operation took.
    """

    __slots__ = (
        "_answered",
        "_asked_s",
        "_context",
        "_deadline",
        "_engine",
        "_expendable",
        "_gone",
        "_losses",
        "_now",
        "_pace",
        "_probing",
        "_replaceable",
        "_session",
        "_silent",
        "_spans",
        "_trips",
        "_unbilled",
        "endpoint",
        "full",
        "lost",
        "refused",
        "took_s",
    )

    def __init__(
        self, endpoint: EndpointInfo, context: RequestContext, expendable: bool, replaceable: bool
    ) -> None:
        self.endpoint = endpoint
        self.lost = self.full = self.refused = self._gone = self._answered = self._silent = False
        self.took_s = 0.0
        self._context, self._expendable, self._replaceable = context, expendable, replaceable
        self._losses: tuple[type[Exception], ...] = (EngineError, OSError) if expendable else (*GONE, OSError)
        self._now = context.loop.time
        self._deadline = self._new_deadline()
        self._pace = Pace()
        self._probing: asyncio.Task[None] | None = None
        self._engine: Engine | None = None
        self._session: Session | None = None
        self._unbilled = 0  # tokens taken in, if they were
        self._asked_s = 0.0  # when it was asked to take them in
        self._trips: deque[tuple[asyncio.Task[Trip], int, bool]] = deque()  # the oldest first
        self._spans: OperationSpans | None = None
        if context.trace is not None:
            self._spans = context.trace.operations(
                {"tandem.endpoint": endpoint.name, "tandem.model": endpoint.model}
            )

    async def connect(self) -> Engine:
        """Dial the endpoint's engine, once."""
        context = self._context
        if self._engine is None:
            limit_s = context.timeouts.connect_s
            if self._replaceable:  # it is asked for no more than whether it is there
                limit_s = min(limit_s, QUIET_S + PROBE_S)
            self._engine = await self._call("connect", limit_s, context.reach.dial(self.endpoint))
        return self._engine

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> None:
        engine = await self.connect()
        if sampling.adapter and self.endpoint.engine != VERIFIER:  # adapters are the target's
            sampling = msgspec.structs.replace(sampling, adapter="")
        if self._spans is not None:
            sampling = msgspec.structs.replace(sampling, trace=self._spans.traceparent)
        if self._context.waited_s:
            sampling = msgspec.structs.replace(sampling, waited_s=self._context.waited_s)
        self._ask(len(prompt) + len(log))
        try:
            self._session = await self._call(
                "open", self._open_s() + self.endpoint.load_s, engine.open(prompt, sampling, log)
            )
        except asyncio.CancelledError:
            self.stop_meter()
            raise
        except BaseException:
            self._unbilled = 0  # it was not admitted
            raise

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        taken_in = given_out = 0
        async with aclosing(self._opened.generate()) as stream:
            while True:
                tokens = await self._call("decode", self._limit_s(), anext(stream, None))
                if tokens is None:
                    return
                taken_in, given_out = taken_in + self._unbilled, given_out + len(tokens.ids)
                self._gave(len(tokens.ids))
                if self._spans is not None:
                    self._spans.count("decode", {"tokens": len(tokens.ids)})
                if (usage := tokens.usage) is not None:  # that is what the service asks money for
                    self._book(usage.tokens_in - taken_in, usage.tokens_out - given_out)
                yield tokens

    async def call(self, operation: Operation[R]) -> R:
        extends = isinstance(operation, Extend)
        if extends and operation.taken_in:
            self._ask(operation.taken_in)
        result = await self._call(operation.name, self._limit_s(), self._opened.call(operation))
        if not extends:
            self._gave(operation.given_out(result))
        if self._spans is not None:
            self._spans.count(operation.name, operation.counts(result))
        return result

    async def score(self, position: int, tokens: Sequence[int]) -> list[TokenLogprob]:
        """Set a forced session's output from `position` on; the log-probabilities that these tokens had."""
        self._ask(len(tokens))
        verdict = await self._call("score", self._limit_s(), self._opened.verify(tokens))
        self._gave(0)
        await self.extend(position + len(tokens), ())  # without the target's own token
        return (verdict.logprobs or [])[: len(tokens)]

    def send(self, position: int, hidden: Tensor, wanted: int) -> None:
        """Have hidden states forwarded; the answers are there to be received in the same order."""
        rows = hidden.shape[0]
        trip = self._context.loop.create_task(self._forward(self._opened, position, hidden, wanted))
        trip.add_done_callback(_seen)
        self._trips.append((trip, rows, wanted > 0))
        self._unbilled += rows

    async def receive(self) -> Trip:
        """Return the next answer. After states of which none were wanted back it may take as long as a first one."""
        task, rows, wanted = self._trips.popleft()
        self._answered = self._answered and wanted
        trip = await self._call("forward", self._limit_s(), task)
        if self._answered:
            self._pace.note(self.took_s)
        self._answered = wanted
        self._unbilled -= rows
        self._book(rows, 0)
        if self._spans is not None:
            self._spans.count("forward", {"rows": rows})
        return trip

    @property
    def on_their_way(self) -> int:
        """Number of answers that were not received yet."""
        return len(self._trips)

    async def _forward(self, session: Session, position: int, hidden: Tensor, wanted: int) -> Trip:
        sent_s = self._now()
        forwarded = await session.forward(position, hidden, wanted)
        return Trip(forwarded, hidden.shape[0], sent_s, self._now())

    async def stats(self) -> EngineStats:
        """Return the engine's statistics, without a time limit. The session must be open, or have been."""
        if self._engine is None:
            raise UnknownSession("this session is not open")
        return await self._engine.stats()

    async def cancel(self) -> None:
        """End the session, if one is open. It may be opened again."""
        session, self._session = self._session, None
        self.stop_meter()
        while self._trips:
            self._trips.popleft()[0].cancel()
        if session is None:
            return
        if self._deadline.waiting:  # for what this ends
            self._deadline.close()
            self._deadline = self._new_deadline()
        await self._call("cancel", self._context.timeouts.open_s, session.cancel())

    async def close(self) -> None:
        """Cancel the session at its endpoint, for good."""
        try:
            await self.cancel()
        finally:
            self.hang_up()

    def hang_up(self) -> None:
        """End all calls."""
        self._deadline.close()

    def end_spans(self) -> None:
        """Export the spans of what was called so far."""
        if self._spans is not None:
            self._spans.end()

    @property
    def info(self) -> EngineInfo:
        """Info of the engine that was dialled."""
        assert self._engine is not None
        return self._engine.info

    @property
    def is_open(self) -> bool:
        """Whether there is a session to cancel."""
        return self._session is not None

    def unfit(self, why: str) -> EndpointLost:
        """Return the error to raise if the endpoint is healthy but of no use to this request."""
        return self._lose(why, gone=False, loss="unfit")

    def stop_meter(self) -> None:
        """Meter a call that was stopped before its answer."""
        taken_in, self._unbilled = self._unbilled - self.spared, 0
        self._book(taken_in, 0)

    @property
    def spared(self) -> int:
        """Return the prompt tokens that would not be computed if it were stopped now, as far as its speed is known. A
        server asks money for them otherwise."""
        if not self._unbilled or not self.endpoint.prefill_token_s:
            return 0
        computed = (self._now() - self._asked_s) / self.endpoint.prefill_token_s
        return max(0, self._unbilled - round(computed))

    def _ask(self, tokens: int) -> None:
        """Record a prefill of `tokens` tokens."""
        if not self._unbilled:
            self._asked_s = self._now()
        self._answered, self._unbilled = False, self._unbilled + tokens

    @property
    def _opened(self) -> Session:
        if self._session is None:
            raise UnknownSession("this session is not open")
        return self._session

    @property
    def _hurried(self) -> bool:
        """Whether it is given up when it is late: once it has answered; and at once where it only helps with an answer
        that its reader has begun."""
        return self._answered or (self._expendable and self._context.patience.begun)

    def _new_deadline(self) -> Deadline:
        context = self._context
        return Deadline(context.loop, self._reached_s, self._late)

    @property
    def _reached_s(self) -> Callable[[], float]:
        return always if self.endpoint.device else self._context.reach.reached_s

    def _late(self) -> float:
        """Ask whether the endpoint is there, unless it has just said so; return the seconds until it is asked again."""
        probes, engine, now_s = self._context.reach.probes, self._engine, self._now()
        again_s = probes.heard_s(self.endpoint.key) + QUIET_S - now_s
        if again_s > ROUNDED_S:  # to others, perhaps right before it hung
            return again_s
        if self._probing is None and engine is not None:
            self._probing = self._context.loop.create_task(self._probe(engine))
        return QUIET_S

    async def _probe(self, engine: Engine) -> None:
        """Give the endpoint up if it says nothing, though it could be reached all the time."""
        asked_s, reach = self._now(), self._context.reach
        answers = await reach.probes.answers(self.endpoint, engine, self._reached_s())
        if not answers and not self._replaceable:  # but perhaps another has come up since the assignment
            with suppress(EngineError):
                self._replaceable = await reach.replaces(self.endpoint)
        self._probing = None
        if not answers and self._replaceable and self._reached_s() <= asked_s:
            self._silent = True
            self._deadline.expire()

    def _open_s(self) -> float:
        """Return the longest wait for a session to be admitted. A device that takes long is busy with others' answers,
        and one that can be replaced is not waited for; of a verifier this would only move the load to another one."""
        open_s = self._context.timeouts.open_s
        if not (self.endpoint.device and self._replaceable):
            return open_s
        usual_s = self._unbilled * self.endpoint.prefill_token_s
        return min(open_s, self._context.patience.next_s(usual_s, True, self._now()))

    def _limit_s(self) -> float:
        context = self._context
        if self._hurried:
            longest_s = max(self._pace.longest_s, self._unbilled * self.endpoint.prefill_token_s)
            return context.patience.next_s(longest_s, self._replaceable, self._now())
        return context.timeouts.step_s if self._expendable else context.timeouts.first_s

    async def _call(self, stage: str, limit_s: float, answer: Awaitable[T]) -> T:
        """Wait for an answer, and account for it."""
        deadline, began_s, context = self._deadline, self._now(), self._context
        deadline.start(began_s, limit_s, context.patience.probe_s(began_s))
        try:
            result = await answer
        except BaseException as error:
            late = deadline.stop()
            self._took(stage, began_s)
            if self._spans is not None:
                self._spans.fail(stage, error)
            self.full = self.full or isinstance(error, NoCapacity)
            self.refused = self.refused or isinstance(error, ServiceRefused)
            if late:
                silent, self._silent = self._silent, False
                if self._hurried and not silent:
                    context.patience.stalled()
                waited_s = self._now() - began_s if silent else limit_s
                raise self._lose(f"no answer to {stage} within {waited_s:g} s", True, "late") from error
            if isinstance(error, self._losses):
                gone = isinstance(error, (*GONE, OSError))
                loss: Loss = "full" if self.full else "refused" if self.refused else "lost"
                raise self._lose(f"{type(error).__name__}: {error}", gone, loss) from error
            raise
        finally:
            if self._probing is not None:
                self._probing.cancel()
                self._probing = None
        deadline.stop()
        self._took(stage, began_s)
        return result

    def _took(self, stage: str, began_s: float) -> None:
        self.took_s = took_s = self._now() - began_s
        seconds = self._context.stats.stages_s
        seconds[stage] = seconds.get(stage, 0.0) + took_s
        if self._spans is not None:
            self._spans.called(stage, began_s, took_s)

    def _lose(self, why: str, gone: bool, loss: Loss) -> EndpointLost:
        self.lost = True
        if gone and not self._gone:
            self._gone = True
            self._context.reach.lost(self.endpoint)
        return EndpointLost(self.endpoint, why, loss)

    def _gave(self, tokens: int) -> None:
        """Record an answer of `tokens` output tokens, after which everything before them was prefilled."""
        if self._answered:
            self._pace.note(self.took_s)
        self._answered = True
        taken_in, self._unbilled = self._unbilled, 0
        self._book(taken_in, tokens)

    def _book(self, taken_in: int, given_out: int) -> None:
        stats = self._context.stats
        if self.endpoint.device:
            stats.joules += self.endpoint.joules.of(taken_in, given_out)
            stats.used.device_in += taken_in
            stats.used.device_out += given_out
        else:
            stats.used.server_in += taken_in
            stats.used.server_out += given_out


def _seen(trip: asyncio.Task[Trip]) -> None:
    """Mark the exception of a trip as retrieved."""
    if not trip.cancelled():
        trip.exception()


class EndpointSessions:
    """A request's sessions at the endpoints of one assignment, by role. The executor closes those in `all`.

    expendable: the roles that the request can do without.
    """

    __slots__ = ("_by_role", "_context", "all")

    def __init__(
        self, assignment: Assignment, context: RequestContext, expendable: Collection[str] = ()
    ) -> None:
        self._context = context
        self._by_role = {
            role: EndpointSession(endpoint, context, role in expendable, role in assignment.replaceable)
            for role, endpoint in assignment.endpoints.items()
        }
        self.all = list(self._by_role.values())

    def __getitem__(self, role: str) -> EndpointSession:
        """Return the session of a role; raises KeyError if the role is not filled."""
        return self._by_role[role]

    def role(self, endpoint: EndpointInfo) -> str:
        """Return the role of an endpoint; "" if it came later."""
        return next((role for role, one in self._by_role.items() if one.endpoint is endpoint), "")

    def get(self, role: str) -> EndpointSession | None:
        """Return the session of a role; None if the role is not filled."""
        return self._by_role.get(role)

    @contextmanager
    def step(self, name: str, attributes: Attributes | None = None) -> Iterator[None]:
        """Trace a step of the mode, and in it the sessions that are added meanwhile."""
        context, outer = self._context, self._context.trace
        with spanned(outer, name, attributes) as span:
            context.trace = span
            try:
                yield
            finally:
                context.trace = outer

    def at(self, endpoint: EndpointInfo) -> EndpointSession:
        """Add a session at an endpoint that came later, and that the request can do without."""
        session = EndpointSession(endpoint, self._context, expendable=True, replaceable=True)
        self.all.append(session)
        return session
