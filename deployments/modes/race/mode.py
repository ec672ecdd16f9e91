"""Mode race (DiSCo): device and server start by plan, the first token wins, the answer may migrate while it runs.

The endpoint that gives the first token continues and the other one is cancelled, unless the answer will migrate there,
as it decodes more cheaply: then it takes in the prompt and holds it, also if it did not race. Until it does, the source
gives no more than the reader needs. The answer migrates as soon as the reader's buffer covers the move: the source
stops, the target gets the log and continues from there. If that fails, the source resumes. `policies.race.race` takes
the decisions: the router plans and keeps the budget with a race of its own; here an equal race decides how to go on,
and its events are reported to the router's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from tandem.deployments.modes.base import EndpointRole, Mode, ModeRun, Services
from tandem.deployments.modes.race.latencies import Rivals
from tandem.deployments.modes.race.router import Event, RaceBriefing, RaceRouter, Taught
from tandem.deployments.modes.race.settings import RaceSettings
from tandem.deployments.request.assignment import EndpointInfo, EndpointLost
from tandem.deployments.request.job import Delta, Figures, Job
from tandem.deployments.request.pools import DEVICE, VERIFIER
from tandem.deployments.request.session import EndpointSession, EndpointSessions
from tandem.deployments.request.tokenlog import Origin, TokenLog
from tandem.engine.base import EngineError, EngineStopped, HandedOver, NoCapacity, ServiceRefused, Tokens
from tandem.policies.race.dispatch import NEVER, DispatchState, Side, Start
from tandem.policies.race.race import Race, RaceAccount, RaceRequest

ORIGINS = {Side.SERVER: Origin.CLOUD, Side.DEVICE: Origin.DEVICE}
LOST = (EndpointLost, EngineStopped, NoCapacity, ServiceRefused)
"""Errors after which another endpoint may continue."""


@dataclass(slots=True)
class Racing(Figures):
    """Figures of a race.

    failovers: times that one endpoint took over because the other had failed or stalled.
    migrations: times that the answer moved to the cheaper endpoint.
    migrations_failed: times that it could not move, as the cheaper endpoint failed.
    kept: losers that were to keep the prompt for a migration.
    prepared: endpoints that did not race, and took in the prompt for a migration.
    """

    mode = "race"
    counters: ClassVar[Mapping[str, str]] = {"migrations": "Answers handed over in a race, by reason"}

    failovers: int = 0
    migrations: int = 0
    migrations_failed: int = 0
    kept: int = 0
    prepared: int = 0

    def counted(self) -> Iterator[tuple[str, str, float]]:
        yield "migrations", "cost", self.migrations
        yield "migrations", "failure", self.failovers


class _AsTold:
    """Dispatch policy that returns the plan made by the router."""

    def __init__(self, start: Start) -> None:
        self._start = start

    def choose(self, state: DispatchState) -> Start:
        return self._start


class RaceMode(Mode):
    """A race: two endpoints start; the first to give a token continues."""

    name = "race"
    roles = (
        EndpointRole("server", VERIFIER, if_absent="device"),
        EndpointRole("device", DEVICE, expendable=True, if_lost="cloud"),
    )
    section, settings = "racing", RaceSettings
    router = RaceRouter
    takes_over = False  # an answer that has its first token has nothing to race for
    figures = Racing
    local = True
    afar = False  # a device plans races itself, with its own statistics and budget (see `app.device.local_router`)

    def __init__(self, settings: RaceSettings, services: Services) -> None:
        self._rivals = Rivals()

    def start(self, job: Job) -> ModeRun:
        return RaceRun(job, self._rivals)


class _Contest:
    """A race as planned by the router, and its events, which are reported back."""

    def __init__(self, job: Job, race: Race) -> None:
        self._job, self.race = job, race
        self.events: list[Event] = []

    def took_in(self, side: Side, tokens: int) -> None:
        self.race.took_in(side, tokens)
        self.events.append(("took_in", side, tokens, 0.0))

    def first_token(self, side: Side, taken_in: int, seconds: float) -> None:
        self.race.first_token(side, taken_in, seconds)
        self.events.append(("first_token", side, taken_in, seconds))

    def resumed(self, side: Side, taken_in: int, seconds: float) -> None:
        self.race.resumed(side, taken_in, seconds)
        self.events.append(("resumed", side, taken_in, seconds))

    def stopped(self, side: Side, seconds: float) -> None:
        self.race.stopped(side, seconds)
        self.events.append(("stopped", side, 0, seconds))


class RaceRun(ModeRun):
    """rivals: what this process knows of endpoints, which every first token adds to at once."""

    def __init__(self, job: Job, rivals: Rivals) -> None:
        self.figures: Racing = Racing()
        self._job, self._rivals = job, rivals
        self._contest: _Contest | None = None

    async def run(
        self, sessions: EndpointSessions, log: TokenLog, briefing: object
    ) -> AsyncGenerator[Delta, None]:
        assert isinstance(briefing, RaceBriefing)
        loop, figures = asyncio.get_running_loop(), self.figures
        contest = self._begun(sessions, briefing)
        race = contest.race
        server = _Runner(sessions["server"], Side.SERVER, self._job, log, contest)
        device = _Runner(sessions["device"], Side.DEVICE, self._job, log, contest)
        # In another vocabulary the log is prefilled anew, with the prompt: holding that is useless.
        alike = server.endpoint.vocabulary == device.endpoint.vocabulary
        try:
            start = race.starts(len(log))
            source, tokens = await _first_token(server, device, start, len(log), race)
            other = device if source is server else server
            holds = alike and other.endpoint.continuation == "kept"
            if (
                other.racing
                and holds
                and race.keep_loser(other.side, loop.time(), other.elapsed_s, other.spared)
            ):
                figures.kept += 1
                await other.hold()
            elif not other.racing and other.fit and holds and race.prepare(other.side, loop.time()):
                figures.prepared += 1
                other.begin()
                await other.hold()
            else:
                other.lose()
            figures.failovers += source.side is Side.SERVER and start.server_s == NEVER
            figures.failovers += source.side is Side.DEVICE and start.device_s == NEVER
            while True:
                yield source.delta(tokens)
                if tokens.finish is not None:
                    return
                race.delivered(len(tokens.ids), loop.time())
                other = device if source is server else server
                if source.may_continue and other.may_continue:
                    await source.rest(other, race.rest_s(source.side, len(log), loop.time()))
                if other.may_continue and race.hand_over(source.side, len(log), loop.time()):
                    with sessions.step("hand_over", source.to(other)):
                        source, tokens = await self._hand_over(source, other, len(log), race)
                    continue
                try:
                    tokens = await source.go_on()
                except LOST:
                    if not other.may_continue:
                        raise
                    source.lose(fit=False)
                    figures.failovers += 1
                    source, tokens = other, await other.first()
        finally:
            await asyncio.gather(server.leave(), device.leave())

    def report(self) -> Taught:
        return Taught([] if self._contest is None else self._contest.events)

    def _begun(self, sessions: EndpointSessions, briefing: RaceBriefing) -> _Contest:
        """Return the request's race, the same under every assignment."""
        if self._contest is None:
            job = self._job
            history = self._rivals.of(sessions["server"].endpoint, sessions["device"].endpoint)
            history.adopt(briefing.history)
            sampling = job.sampling
            race = Race(
                RaceRequest(len(job.prompt), sampling.max_tokens, sampling.reader_rate, share=1.0),
                briefing.costs,
                RaceAccount(_AsTold(briefing.start), briefing.migration),  # the books are the router's
                history,
                coin=0.0,
            )
            race.limit = briefing.limit
            self._contest = _Contest(job, race)
        return self._contest

    async def _hand_over(
        self, source: _Runner, target: _Runner, sent: int, race: Race
    ) -> tuple[_Runner, Tokens]:
        """Migrate; return the endpoint that continues after `sent` tokens, and its first tokens."""
        if source.may_continue:  # another one is left running until it is not needed any more
            await source.pause()
        try:
            limit_s = race.patience_s(target.side, sent)
            async with asyncio.timeout(None if limit_s == NEVER else limit_s):
                tokens = await target.first()
        except (*LOST, TimeoutError):
            target.lose(fit=False)
            self.figures.migrations_failed += 1
            return source, await source.go_on()
        self.figures.migrations += 1
        source.lose()
        return target, tokens


async def _first_token(
    server: _Runner, device: _Runner, start: Start, sent: int, race: Race
) -> tuple[_Runner, Tokens]:
    """Start both by plan; the winner and its first tokens. The other one may still be racing.

    One that is not to start does so all the same if the other fails or, within the budget, stalls. A new request whose
    other endpoint is merely full is not worth exceeding the budget. Raises NoCapacity.
    """
    now_s = asyncio.get_running_loop().time
    began_s = now_s()
    waiting = {server: start.server_s, device: start.device_s}
    for runner, other in ((server, device), (device, server)):
        if waiting[runner] == NEVER and race.may_start(runner.side, sent):
            waiting[runner] = race.patience_s(other.side, sent)
    running: dict[asyncio.Task[Tokens], _Runner] = {}
    while True:
        soonest = min(waiting, key=waiting.__getitem__, default=None)
        wait_s = NEVER if soonest is None else began_s + waiting[soonest] - now_s()
        if soonest is not None and (wait_s <= 0 or not running):  # there may be no running one
            del waiting[soonest]
            running[soonest.begin()] = soonest
            continue
        await asyncio.wait(
            running, timeout=None if wait_s == NEVER else wait_s, return_when=asyncio.FIRST_COMPLETED
        )
        for task, runner in list(running.items()):  # of two that are done, the one that began first
            if not task.done():
                continue
            del running[task]
            try:
                return runner, task.result()
            except LOST as loss:
                if not running and not waiting:
                    raise
                if runner.full and not (
                    sent or running or any(race.may_start(r.side, sent) for r in waiting)
                ):
                    raise _no_room(loss) from loss


def _no_room(loss: Exception) -> NoCapacity:
    refusal = loss if isinstance(loss, NoCapacity) else loss.__cause__
    assert isinstance(refusal, NoCapacity)
    if isinstance(refusal, HandedOver):
        return refusal
    return NoCapacity(f"{refusal}; the budget is spent", refusal.retry_after_s)


class _Runner:
    """One endpoint's part in a race. fit: whether it may still be asked."""

    def __init__(
        self, session: EndpointSession, side: Side, job: Job, log: TokenLog, contest: _Contest
    ) -> None:
        self.side, self.fit = side, True
        self._session, self._job, self._log, self._contest = session, job, log, contest
        self._loop = asyncio.get_running_loop()
        self._beginning: asyncio.Task[Tokens] | None = None
        self._stream: AsyncGenerator[Tokens, None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._holds = False
        self._began_s = 0.0

    @property
    def racing(self) -> bool:
        """Whether it has begun, and has not failed."""
        return self._beginning is not None and self.fit

    @property
    def endpoint(self) -> EndpointInfo:
        return self._session.endpoint

    @property
    def may_continue(self) -> bool:
        """Whether it may be asked to go on with what the log says."""
        return self.fit and self.endpoint.continues

    @property
    def full(self) -> bool:
        """Whether the endpoint had no room for the request."""
        return self._session.full

    @property
    def spared(self) -> int:
        """Return the prompt tokens that are not paid for if it is stopped now."""
        return self._session.spared

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return self._loop.time() - self._began_s

    async def hold(self) -> None:
        """Prefill the rest of the prompt and keep it, without generating."""
        assert self._beginning is not None
        self._holds = True
        if self._beginning.done():
            await self.pause()

    def begin(self) -> asyncio.Task[Tokens]:
        """Start; return the task that ends with the first tokens."""
        held, self._holds = self._holds, False
        work = self._take_up(self._beginning) if held and self._beginning is not None else self._begin()
        self._beginning = self._loop.create_task(work)
        self._beginning.add_done_callback(_seen)
        return self._beginning

    async def first(self) -> Tokens:
        """Start, and wait for the first tokens; where that fails, it is no longer fit."""
        beginning = self.begin()
        try:
            return await beginning
        except EngineError:
            self.lose(fit=False)
            raise

    async def _begin(self) -> Tokens:
        """Open a session at what the log says, and generate from there."""
        if self._leaving is not None:  # it was here before: that session must be gone
            await self._leaving
            self._leaving = None
        job, ids = self._job, tuple(self._log.ids)
        opening = self._session.open(job.prompt, job.sampling, ids)
        return await self._go(len(job.prompt) + len(ids), opening, self._contest.first_token)

    async def _take_up(self, holding: asyncio.Task[Tokens]) -> Tokens:
        """Go on from the prompt that it holds, or is about to."""
        await holding
        await self.pause()
        ids = tuple(self._log.ids)
        return await self._go(len(ids), self._session.extend(0, ids), self._contest.resumed)

    async def _go(
        self,
        taken_in: int,
        ready: Coroutine[None, None, None],
        report: Callable[[Side, int, float], None],
    ) -> Tokens:
        """Return its first tokens after a prefill of `taken_in` tokens, and report how long they took."""
        self._began_s = self._loop.time()
        self._contest.took_in(self.side, taken_in)
        try:
            await ready
            self._stream = self._session.generate()
            tokens = await self.next()
        except LOST:
            self.fit = False
            raise
        report(self.side, taken_in, self._loop.time() - self._began_s)
        if self._holds:
            await self.pause()
        return tokens

    async def next(self) -> Tokens:
        """Return its next tokens."""
        assert self._stream is not None
        tokens = await anext(self._stream, None)
        if tokens is None:
            raise EngineStopped("the answer ended without saying why")
        return tokens

    def to(self, target: _Runner) -> dict[str, str]:
        """Return a move from here as a trace has it."""
        return {"tandem.source": self.endpoint.name, "tandem.target": target.endpoint.name}

    def delta(self, tokens: Tokens) -> Delta:
        """Return the tokens as the delta that follows the log."""
        ids = tokens.ids
        origins = [ORIGINS[self.side]] * len(ids)
        return Delta(ids, origins, tokens.finish, logprobs=tokens.logprobs, position=len(self._log))

    async def pause(self) -> None:
        """Generate no further; what the log doesn't have is forgotten."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()

    async def go_on(self) -> Tokens:
        """Return its next tokens from the log's end, also after a pause."""
        if self._stream is not None:
            return await self.next()
        began_s = self._loop.time()
        await self._session.extend(len(self._log), [])
        self._stream = self._session.generate()
        tokens = await self.next()
        if self.side is Side.SERVER:
            self._contest.resumed(self.side, 1, self._loop.time() - began_s)
        return tokens

    async def rest(self, other: _Runner, seconds: float) -> None:
        """Pause until the other one holds the prompt or has failed, for some seconds at most."""
        beginning = other._beginning
        if seconds <= 0.0 or beginning is None:
            return
        await self.pause()
        await asyncio.wait((beginning,), timeout=seconds)

    def lose(self, fit: bool = True) -> None:
        """Stop computing, without keeping the answer waiting. fit: it may be asked again."""
        self.fit, self._holds = self.fit and fit, False
        beginning, self._beginning = self._beginning, None
        if beginning is None:
            return
        if not beginning.done():
            self._contest.stopped(self.side, self._loop.time() - self._began_s)
            beginning.cancel()
        self._leaving = self._loop.create_task(self._cancel(beginning))

    async def leave(self) -> None:
        """End its background work; an open session is the executor's to close."""
        if self._beginning is not None and not self._beginning.done():
            self.lose()
        if self._leaving is not None:
            await asyncio.shield(self._leaving)
        await self.pause()

    async def _cancel(self, beginning: asyncio.Task[Tokens]) -> None:
        await asyncio.wait((beginning,))
        with suppress(EngineError):  # it is gone, and the session with it
            await self.pause()
            if self.fit:  # otherwise it is not used again, and the executor ends its session
                await self._session.cancel()


def _seen(beginning: asyncio.Task[Tokens]) -> None:
    """Mark the exception of a beginning as retrieved."""
    if not beginning.cancelled():
        beginning.exception()
