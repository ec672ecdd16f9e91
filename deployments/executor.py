"""The executor: carries a job from its assignment to its last token, through the loss of endpoints."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from cluster.tokenlog import TokenLog
from deployments.assignment import Assignment, EndpointInfo, EndpointLost, NoEndpoint, Wishes
from deployments.job import Delta, Job, JobStats
from deployments.pairs import Pairs
from deployments.plans import Piece, plan_for
from deployments.racing import Racing, RacingSettings
from deployments.seat import Dial, Patience, Seat
from engine.base import EngineError, EngineStopped, NoCapacity
from policies.window import WindowPolicy

logger = logging.getLogger(__name__)

Assign = Callable[[Wishes], Awaitable[Assignment]]


@dataclass(frozen=True, slots=True)
class Limits:
    """replans: how often one job may go on elsewhere; assign_s: seconds to wait for an assignment;
    seat: time limits at an endpoint."""

    replans: int = 4
    assign_s: float = 60.0
    seat: Patience = Patience()  # noqa: RUF009  (frozen)


class Executor:
    """Runs any number of jobs at once. assign: asks the router; dial: an engine for an endpoint;
    window: a window policy for a new draft–target pair; racing: what races have taught, and the accounts;
    report: is told of every endpoint that is gone, also where the answer goes on without it."""

    def __init__(
        self,
        assign: Assign,
        dial: Dial,
        window: Callable[[], WindowPolicy],
        limits: Limits | None = None,
        racing: Racing | None = None,
        report: Callable[[EndpointInfo], None] = lambda _: None,
    ) -> None:
        self._assign, self._dial, self._pairs = assign, dial, Pairs(window)
        self._racing = racing or Racing(RacingSettings())
        self._limits, self._report = limits or Limits(), report
        self._leaving: set[asyncio.Task[None]] = set()

    async def run(self, job: Job) -> AsyncGenerator[Delta, None]:
        """The answer as it grows; the last delta has `finish` and `stats`.

        However this ends (last token, error, or the caller closing it), the sessions at all endpoints are
        cancelled in the background. Raises EngineError: what the router or an engine refuses, or
        EngineStopped when the endpoints were lost more often than allowed.
        """
        log, stats = TokenLog(), JobStats()
        async with aclosing(self._answer(job, log, stats)) as deltas:
            try:
                async for delta in deltas:
                    if delta.finish:
                        self._racing.book(job, stats)
                    yield delta
            finally:
                if not stats.tokens:  # it did not come to its end
                    self._racing.book(job, stats)

    async def _answer(self, job: Job, log: TokenLog, stats: JobStats) -> AsyncGenerator[Delta, None]:
        began, lost = time.monotonic(), list[str]()
        while True:
            seats: list[Seat] = []

            def take_seat(endpoint: EndpointInfo, expendable: bool, seats: list[Seat] = seats) -> Seat:
                seat = Seat(endpoint, self._dial, self._limits.seat, stats, expendable, self._report)
                seats.append(seat)
                return seat

            try:
                assignment = await self._assignment(job, lost, stats)
                plan = plan_for(assignment, take_seat, self._pairs, self._racing, job)
                async with aclosing(plan.run(job, log, stats)) as pieces:
                    async for piece in pieces:
                        delta = _settle(piece, log, stats, began)
                        yield delta
                        if delta.finish:
                            return
                raise EngineStopped("the answer ended without saying why")
            except EndpointLost as loss:
                lost += [seat.endpoint.key for seat in seats if seat.lost]  # of a race, perhaps both
                self._count_replan(stats, loss)
                await self._vacate(seat for seat in seats if not seat.lost)
            except NoCapacity as full:
                if not log:
                    raise
                self._count_replan(stats, full)  # half an answer is worth waiting for
                await self._vacate(seats)
                await asyncio.sleep(full.retry_after_s)
            finally:
                for seat in seats:
                    self._leave(seat)

    async def settled(self) -> None:
        """Return when no cancellation is on its way any more."""
        while self._leaving:
            await asyncio.wait(self._leaving)

    async def _assignment(self, job: Job, lost: list[str], stats: JobStats) -> Assignment:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._limits.assign_s):
                assignment = await self._assign(Wishes(job.mode, job.device, tuple(lost)))
        except TimeoutError:
            raise NoEndpoint(f"no assignment within {self._limits.assign_s:g} s") from None
        finally:
            stats.stages_s["plan"] = stats.stages_s.get("plan", 0.0) + time.perf_counter() - began
        stats.mode, stats.device = assignment.mode, assignment.device
        return assignment

    def _count_replan(self, stats: JobStats, why: EngineError) -> None:
        logger.warning("replan %d: %s", stats.replans + 1, why)
        if stats.replans >= self._limits.replans:
            raise EngineStopped(f"given up after {stats.replans} attempts elsewhere; last: {why}") from why
        stats.replans += 1

    async def _vacate(self, seats: Iterable[Seat]) -> None:
        """Leave endpoints that are well, and may be asked to open the same session again."""
        if leaving := [self._leave(seat) for seat in seats]:
            await asyncio.wait(leaving)

    def _leave(self, seat: Seat) -> asyncio.Task[None]:
        """Cancel the session at the seat's endpoint without keeping the answer waiting."""
        task = asyncio.get_running_loop().create_task(_close(seat))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task


async def _close(seat: Seat) -> None:
    try:
        await seat.close()
    except EngineError as error:  # it is gone, and the session with it
        logger.info("leaving %s: %s", seat.endpoint.name, error)


def _settle(piece: Piece, log: TokenLog, stats: JobStats, began: float) -> Delta:
    """Enter a piece into the log (which refuses gaps and repetitions), and into the stats."""
    now = time.monotonic()
    if piece.ids and not log:
        stats.ttft_s = now - began
    log.append(piece.position, piece.ids, piece.origins, now)
    if not piece.finish:
        return Delta(piece.ids, piece.origins, None, piece.logprobs)
    stats.tokens, stats.by_origin, stats.total_s = len(log), log.by_origin(), now - began
    return Delta(piece.ids, piece.origins, piece.finish, piece.logprobs, stats)
