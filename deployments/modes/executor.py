"""The executor: carries a job from its assignment to its last token, through the loss of endpoints."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict, replace
from types import MappingProxyType

from tandem.deployments.learning.report import Report
from tandem.deployments.modes import MODES
from tandem.deployments.modes.base import Mode, ModeRun, Services
from tandem.deployments.modes.course import Course, Reconsider
from tandem.deployments.request.assignment import (
    Assignment,
    EndpointInfo,
    EndpointLost,
    NoEndpoint,
    Present,
    RoutingRequest,
)
from tandem.deployments.request.forecast import Change
from tandem.deployments.request.job import Delta, Job, JobStats, Move, Reason
from tandem.deployments.request.pools import DEVICE
from tandem.deployments.request.session import EndpointSession, EndpointSessions, Reach, RequestContext
from tandem.deployments.request.timeouts import Deadline, Limits
from tandem.deployments.request.tokenlog import TokenLog
from tandem.deployments.request.under_way import UnderWay
from tandem.deployments.tracing.trace import Trace, spanned
from tandem.engine.base import (
    EngineError,
    EngineStopped,
    HandedOver,
    NoCapacity,
    ServiceRefused,
    SplitInfo,
)
from tandem.engine.config import Strict
from tandem.policies.reader.quality import Reader
from tandem.policies.reader.stall_timeout import Patience
from tandem.policies.routing.content import content_of

logger = logging.getLogger(__name__)

VACATE_S = 1.0
"""Longest that an answer waits for sessions elsewhere to end before it goes on."""
Assign = Callable[[RoutingRequest], Awaitable[Assignment]]


class Executor:
    """Runs any number of jobs at once, on the event loop's clock.

    assign: asks the router for an assignment.
    reach: how endpoints are reached from here.
    settings: of the modes, by name, unless they are the defaults.
    services: dependencies of the modes.
    report: reports a finished answer to the router.
    model: name of the model that answers; "": the router's first one.
    reconsider: asks the router for another assignment for the rest of an answer whose tokens come late; None: no answer
        changes its way.
    compares: whether the router compares ways to answer, and so is told what a request is about and which modes would
        serve it in their own way, which takes a look at its whole text.
    """

    def __init__(
        self,
        assign: Assign,
        reach: Reach,
        settings: Mapping[str, Strict] = MappingProxyType({}),
        services: Services | None = None,
        limits: Limits | None = None,
        report: Callable[[Report], object] = lambda _: None,
        model: str = "",
        reconsider: Reconsider | None = None,
    ) -> None:
        self._assign, self._reach, self._report, self._model = assign, reach, report, model
        self._settings, self._services, self._limits = settings, services or Services(), limits or Limits()
        self._reconsider = reconsider
        self.compares = False
        self._modes: dict[type[Mode], Mode] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._running: dict[_Request, None] = {}  # the oldest first

    async def run(self, job: Job) -> AsyncGenerator[Delta, None]:
        """Yield the answer as it grows; the last delta has `finish`, and all have `stats`.

        However this ends (last token, error, or the caller closing it), the sessions at all endpoints are
        cancelled in the background. Raises EngineError: what the router or an engine refuses, or
        EngineStopped when the endpoints were lost more often than allowed, or had no room for half an answer.
        """
        if job.mode is not None:
            self.check(job.mode)
        request = _Request(self, job)
        self._running[request] = None
        try:
            while True:
                try:
                    async with aclosing(await request.start()) as deltas:
                        async for delta in deltas:
                            request.enter(delta)
                            yield delta
                            if delta.finish:
                                return
                            if request.better is not None:
                                break
                        else:
                            raise EngineStopped("the answer ended without saying why")
                    await request.change()
                except EndpointLost as loss:
                    await request.lose(loss)
                except HandedOver:
                    await request.move()
                except NoCapacity as refusal:
                    await request.wait_for_room(refusal)
                except ServiceRefused as refusal:
                    await request.pass_over(refusal)
        finally:
            del self._running[request]
            request.end()

    def under_way(self) -> list[UnderWay]:
        """Return the answers that are being given, the oldest first."""
        return [request.under_way() for request in self._running]

    def follow(self, settings: Mapping[str, Strict]) -> None:
        """Take over other settings of the modes, for jobs from now on."""
        self._settings, self._modes = settings, {}

    def wanted(self, job: Job) -> RoutingRequest:
        """Return what the router is asked for a job that begins."""
        return RoutingRequest(
            mode=job.mode,
            device=job.device,
            request=job.id,
            prompt_tokens=len(job.prompt),
            max_tokens=job.sampling.max_tokens,
            sent=len(job.log),
            reader_rate=job.sampling.reader_rate,
            account=job.account,
            budget=job.budget,
            exchange_rate=job.exchange_rate,
            modes=job.modes,
            devices=job.devices,
            split=self.split,
            model=self._model,
            priority=job.priority,
            silent=self._reach.probes.silent,
            objective=job.objective,
            content=self._content(job),
            unsuited=tuple(self._unsuited(job)),
        )

    def _content(self, job: Job) -> str:
        if not self.compares:
            return ""
        return content_of(job.question.text if job.question else "", job.sampling.grammar is not None)

    def _unsuited(self, job: Job) -> Iterator[str]:
        if self.compares and job.mode is None:
            yield from (name for name in MODES if not self.mode(name).suits(job))

    @property
    def split(self) -> SplitInfo | None:
        """Return the part of a split model in this process."""
        outer = self._services.outer
        return None if outer is None else outer.info.split

    def closing(self) -> frozenset[asyncio.Task[None]]:
        """Cancellations that are on their way."""
        return frozenset(self._leaving)

    async def settled(self) -> None:
        """Return when no cancellation is on its way any more."""
        while self._leaving:
            await asyncio.wait(self._leaving)

    def check(self, mode: str) -> None:
        """Raises EngineError for a mode whose requests cannot be driven from here."""
        if mode in MODES:
            self.mode(mode).check()

    def mode(self, name: str) -> Mode:
        """Return this executor's object of that mode."""
        kind = MODES[name]
        mode = self._modes.get(kind)
        if mode is None:
            mode = self._modes[kind] = kind(self._settings.get(name) or kind.settings(), self._services)
        return mode

    def leave(self, session: EndpointSession) -> asyncio.Task[None] | None:
        """Cancel a session without keeping the answer waiting; None where there is nothing to cancel."""
        session.stop_meter()
        session.end_spans()
        if not session.is_open:
            session.hang_up()
            return None
        return self.finish(_close(session))

    def finish(self, closing: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """End a session in the background."""
        task = asyncio.get_running_loop().create_task(closing)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task


class _Request:
    """A running job. losses: endpoints that it went on without; lost, full: as in RoutingRequest."""

    def __init__(self, executor: Executor, job: Job) -> None:
        self._executor, self._job = executor, job
        self._limits = executor._limits
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self.log, self.stats = TokenLog(list(job.log.ids), list(job.log.origins)), JobStats()
        timeouts = self._limits.timeouts
        rate = job.sampling.reader_rate
        self._patience, self._reader = Patience(timeouts.step_s, rate), Reader(rate) if rate else None
        self._context = RequestContext(executor._reach, self.stats, timeouts, self._patience)
        self._runs: dict[str, ModeRun] = {}
        self._assignment: Assignment | None = None
        self._sessions: EndpointSessions | None = None
        self._losses = 0  # since the last token
        self._token_s = self._began_s  # when that came
        self._lost: list[str] = []
        self._full: dict[str, None] = {}
        self._refused: dict[str, ServiceRefused] = {}  # by endpoints, which count as full for others
        self._refusal: NoCapacity | None = None  # of the last that had no room
        self._room_until_s = float("inf")  # there must be room for the rest of the answer
        self._retry_s = 0.0
        self._part: Trace | None = None  # of the trace, under the present assignment
        self._better: Assignment | None = None  # the next one, if the answer changes its way
        self._course: Course | None = None
        if job.mode is None and executor._reconsider is not None:
            self._course = Course(executor._reconsider, rate, self._limits.assign_s)

    async def start(self) -> AsyncGenerator[Delta, None]:
        """Return the deltas of the answer's next part, under a new assignment."""
        self._leave()
        if self._course is not None:
            self._course.end_part()
        better, self._better = self._better, None
        self._assignment = assignment = better or await self._assigned()
        for endpoint in assignment.endpoints.values():
            if endpoint.key in self._refused:  # there is no other one, or those have no room
                raise self._refused[endpoint.key] if self._refusal is None else self._refusal
        if any(e.key in self._full for e in assignment.endpoints.values()):
            if not self.log and self._refusal is not None:  # there is no other one
                raise self._refusal
            await asyncio.sleep(min(self._retry_s, self._room_until_s - self._loop.time()))
        mode, stats = self._executor.mode(assignment.mode), self.stats
        stats.mode, stats.device, stats.prices = assignment.mode, assignment.device, assignment.prices
        asked = self._job.mode
        if asked is not None and assignment.mode != asked and not stats.moves:
            stats.moves.append(
                Move(len(self.log), "absent", _missing(MODES[asked], assignment.mode, self._job))
            )
        if not (stats.replans or stats.changes):
            stats.forecast = assignment.forecast
        if self._job.trace is not None:
            self._part = self._context.trace = self._job.trace.child(mode.name, self._traced)
        run = self._runs.get(mode.name)
        if run is None:
            run = self._runs[mode.name] = mode.start(self._job)
            stats.figures[mode.name] = run.figures
        expendable = [role.name for role in mode.roles if role.expendable]
        self._sessions = EndpointSessions(assignment, self._context, expendable)
        if self._course is not None:
            self._course.begin(assignment.forecast, self._loop.time())
        return run.run(self._sessions, self.log, assignment.briefing)

    def enter(self, delta: Delta) -> None:
        """Enter a delta into the log, which refuses gaps and repetitions, and into the stats."""
        now_s, log, stats = self._loop.time(), self.log, self.stats
        ids = delta.ids
        if ids:
            if len(log) == len(self._job.log):
                stats.ttft_s = now_s - self._began_s
            self._losses, self._token_s = 0, now_s
            if self._full:
                self._full, self._room_until_s = {}, float("inf")
            self._patience.delivered(len(ids), now_s)
            if (reader := self._reader) is not None:
                reader.deliver(len(ids), now_s)
                stats.stall_s = reader.stalled_s
        log.append(delta.position, ids, delta.origins)
        if ids and self._course is not None:
            self._follow_course(len(ids), now_s)
        delta.stats = stats
        if delta.finish:
            stats.tokens, stats.by_origin, stats.total_s = len(log), log.by_origin(), now_s - self._began_s
            self._stop_meters()

    async def lose(self, loss: EndpointLost) -> None:
        """Go on without an endpoint, or raise EngineStopped."""
        self._warn_of(loss)
        assert self._sessions is not None
        lost = [s for s in self._sessions.all if s.lost]  # of a race, perhaps both
        self._lost += [s.endpoint.key for s in lost]
        # A request that an endpoint has admitted, and that has no token yet, may be what it fails of.
        suspect = not self.log and any(s.is_open for s in lost)
        patient = not suspect and self._loop.time() - self._token_s < self._limits.assign_s
        if self._losses >= self._limits.replans and not patient:
            raise EngineStopped(f"given up after {self._losses} attempts elsewhere; last: {loss}") from loss
        self._losses += 1
        self._note_move(loss.loss, loss.endpoint)
        await self._vacate(s for s in self._sessions.all if not s.lost)

    def _follow_course(self, tokens: int, now_s: float) -> None:
        """Seek a better way to go on if the tokens come late."""
        assignment, course, reader = self._assignment, self._course, self._reader
        assert assignment is not None
        assert course is not None
        ahead_s = 0.0 if reader is None else reader.dry_s(now_s)
        if tpot_s := course.delivered(tokens, self.stats.stall_s, ahead_s, now_s):
            present = Present(assignment.mode, assignment.device, assignment.endpoints, tpot_s)
            course.seek(self._wanted(), present)

    @property
    def better(self) -> Assignment | None:
        """Assignment for the rest in a better way; None if none has been found."""
        return None if self._course is None else self._course.better

    async def change(self) -> None:
        """Go on in the better way that was found."""
        self._better = better = self.better
        assert better is not None
        assert better.forecast is not None
        assert self._sessions is not None
        self.stats.changes.append(Change(len(self.log), better.forecast))
        self._note_move("better")
        logger.info("after %d tokens: %s in place of %s", len(self.log), better.mode, self.stats.mode)
        await self._vacate(self._sessions.all)

    async def wait_for_room(self, refusal: NoCapacity) -> None:
        """Wait for room if the answer has begun; raise the refusal of a new one, unless another endpoint has room."""
        now_s = self._loop.time()
        full = [] if self._sessions is None else [s.endpoint for s in self._sessions.all if s.full]
        keys = [endpoint.key for endpoint in full]
        if self._sessions is None or (not self.log and self._full.keys() >= set(keys)):
            raise refusal
        self._room_until_s = min(self._room_until_s, now_s + self._limits.assign_s)
        if now_s >= self._room_until_s:
            raise EngineStopped(
                f"no room for the rest of the answer within {self._limits.assign_s:g} s"
            ) from refusal
        self._full.update(dict.fromkeys(keys))
        self._refusal = refusal
        self._retry_s = refusal.retry_after_s
        self._note_move("full", *full[:1])
        await self._vacate(self._sessions.all)

    async def move(self) -> None:
        """Go where there is room for what has only waited, with the place in the queue that it had."""
        assert self._sessions is not None
        self._full = {session.endpoint.key: None for session in self._sessions.all if session.full}
        self._refusal, self._retry_s = None, 0.0
        self._context.waited_s = self._loop.time() - self._began_s
        await self._vacate(self._sessions.all)

    async def pass_over(self, refusal: ServiceRefused) -> None:
        """Go on without endpoints whose services refuse this application, or raise the refusal."""
        refused = [] if self._sessions is None else [s.endpoint for s in self._sessions.all if s.refused]
        if self._sessions is None or not refused:
            raise refusal
        self._warn_of(refusal)
        self._refused.update(dict.fromkeys((endpoint.key for endpoint in refused), refusal))
        self._note_move("refused", refused[0])
        await self._vacate(self._sessions.all)

    def _note_move(self, reason: Reason, endpoint: EndpointInfo | None = None) -> None:
        """Record that the answer goes on elsewhere. endpoint: the one that it goes on without; None: none failed."""
        move = Move(len(self.log), reason)
        if endpoint is not None and self._sessions is not None:
            device = endpoint.name if endpoint.device else None
            move = move._replace(role=self._sessions.role(endpoint), device=device)
        self.stats.moves.append(move)

    def under_way(self) -> UnderWay:
        """Return the answer's state."""
        assignment, origins = self._assignment, self.log.origins
        return UnderWay(
            request=self._job.id,
            account=self._job.account,
            mode="" if assignment is None else assignment.mode,
            endpoints={} if assignment is None else {r: e.name for r, e in assignment.endpoints.items()},
            tokens=len(origins),
            origin=str(origins[-1]) if origins else "",
        )

    def end(self) -> None:
        """Leave the endpoints and stop what runs for the request, whether it finished, failed or was cancelled."""
        self._leave()
        if self._course is not None:
            self._course.end_part()
        for run in self._runs.values():
            if (closing := run.close()) is not None:
                self._executor.finish(closing)
        if self._assignment is None:
            return
        if not self.stats.by_origin:  # it did not come to its end
            self.stats.by_origin = self.log.by_origin()
        taught = {name: report for name, run in self._runs.items() if (report := run.report()) is not None}
        stats = self.stats
        # Of an answer that changed its way each part is learnt from; of one that was moved by a failure nothing is.
        parts = (
            () if self._course is None or not stats.changes or stats.replans else tuple(self._course.parts)
        )
        self._executor._report(
            Report(
                account=self._job.account,
                device=stats.device or "",
                tokens=len(self.log),
                whole=stats.tokens > 0,
                bill=stats.bill(),
                taught=taught,
                request=self._job.id,
                model=self._executor._model,
                mode=stats.mode,
                ttft_s=0.0 if parts else stats.ttft_s,
                tpot_s=0.0 if parts else stats.tpot_s,
                stall_s=stats.stall_s,
                forecast=None if stats.replans else stats.forecast,
                parts=parts,
            )
        )

    async def _assigned(self) -> Assignment:
        with spanned(self._job.trace, "assign", self._traced) as span:
            assignment = await self._asked("" if span is None else span.traceparent)
            if span is not None:
                endpoints = [f"{role}={each.name}" for role, each in assignment.endpoints.items()]
                span.set({"tandem.mode": assignment.mode, "tandem.endpoints": endpoints})
            return assignment

    def _wanted(self) -> RoutingRequest:
        """Return what the router is asked for the rest of the answer."""
        return replace(
            self._executor.wanted(self._job),
            lost=tuple(self._lost),
            full=(*self._full, *self._refused),
            sent=len(self.log),
        )

    async def _asked(self, trace: str) -> Assignment:
        began_s = self._loop.time()
        wanted = replace(self._wanted(), trace=trace)
        deadline = Deadline(self._loop, self._executor._reach.reached_s)
        deadline.start(began_s, self._limits.assign_s)
        try:
            return await self._executor._assign(wanted)
        except asyncio.CancelledError:
            if deadline.stop():
                raise NoEndpoint(f"no assignment within {self._limits.assign_s:g} s") from None
            raise
        finally:
            deadline.stop()
            deadline.close()
            stages = self.stats.stages_s
            stages["assign"] = stages.get("assign", 0.0) + self._loop.time() - began_s

    def _stop_meters(self) -> None:
        """Stop metering unfinished calls."""
        if self._sessions is not None:
            for session in self._sessions.all:
                session.stop_meter()

    async def _vacate(self, sessions: Iterable[EndpointSession]) -> None:
        """Leave endpoints that are well, which may be asked for the same place again."""
        if leaving := [task for s in sessions if (task := self._executor.leave(s)) is not None]:
            await asyncio.wait(leaving, timeout=VACATE_S)

    def _leave(self) -> None:
        sessions, self._sessions = self._sessions, None
        for session in sessions.all if sessions is not None else ():
            self._executor.leave(session)
        part, self._part = self._part, None
        if part is not None:
            figures = self._runs[self.stats.mode].figures
            part.set({f"tandem.{name}": value for name, value in asdict(figures).items() if _plain(value)})
            part.end()

    def _warn_of(self, failure: EngineError) -> None:
        """Record that the answer goes on elsewhere, and why."""
        trace = self._job.trace
        extra = {} if trace is None else trace.fields
        logger.warning("replan %d: %s", self.stats.replans + 1, failure, extra=extra)
        if self._part is not None:
            self._part.fail(type(failure).__name__, str(failure))

    @property
    def _traced(self) -> dict[str, str]:
        """Return attributes that tell the request's answers apart."""
        return {"tandem.job": str(self._job.id)}


def _missing(mode: type[Mode], served: str, job: Job) -> str:
    """Return the role for want of which another mode serves a job; "" if another one's want led there."""
    roles = [role for role in mode.roles if served in (role.if_absent, role.if_lost)]
    of_device = [role for role in roles if (role.pool == DEVICE) == (job.device is not None)]
    return next((role.name for role in (*of_device, *roles)), "")


def _plain(value: object) -> bool:
    """Whether a span's attribute can have the value."""
    return isinstance(value, int | float)


async def _close(session: EndpointSession) -> None:
    try:
        await session.close()
    except EngineError as error:  # it is gone, and the session with it
        logger.info("leaving %s: %s", session.endpoint.name, error)
