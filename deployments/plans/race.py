"""Mode race (DiSCo): device and server start by plan, the first token wins, the answer may move on while it runs.

Whoever gives the first token goes on and the other one is cancelled. Where the other decodes more cheaply, the
answer is handed over as soon as the reader has enough before them not to notice: the source stops, the target
is told the log and goes on from there. If it can't, the source takes up again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import cast

from cluster.tokenlog import Origin, TokenLog
from deployments.assignment import EndpointLost
from deployments.job import Job, JobStats
from deployments.plans.base import Piece
from engine.base import Engine, EngineError, EngineStopped, NoCapacity, Tokens
from policies.contest import Contest
from policies.dispatch import BOTH, NEVER, Side, Start

ORIGINS = {Side.SERVER: Origin.CLOUD, Side.DEVICE: Origin.DEVICE}
LOST = (EndpointLost, EngineStopped, NoCapacity)
"""What another endpoint may make good."""


class Race:
    """server, device: whoever is first goes on, by the contest's plan."""

    def __init__(self, server: Engine, device: Engine, contest: Contest) -> None:
        self._server, self._device, self._contest = server, device, contest

    async def run(self, job: Job, log: TokenLog, stats: JobStats) -> AsyncGenerator[Piece, None]:
        server = _Runner(self._server, Side.SERVER, job, log, self._contest)
        device = _Runner(self._device, Side.DEVICE, job, log, self._contest)
        try:
            start = self._contest.start if not log else BOTH  # half an answer is in a hurry
            source, tokens = await self._first_token(server, device, start, len(log))
            stats.failovers += source.side is Side.SERVER and start.server_s == NEVER
            stats.failovers += source.side is Side.DEVICE and start.device_s == NEVER
            while True:
                yield source.piece(tokens)
                if tokens.finish is not None:
                    return
                self._contest.delivered(len(tokens.ids), time.monotonic())
                other = device if source is server else server
                if other.fit and self._contest.hand_over(source.side, len(log), time.monotonic()):
                    source, tokens = await self._hand_over(source, other, len(log), stats)
                    continue
                try:
                    tokens = await source.next()
                except LOST:
                    if not other.fit:
                        raise
                    source.lose(fit=False)
                    stats.failovers += 1
                    source, tokens = other, await other.first()
        finally:
            await asyncio.gather(server.leave(), device.leave())

    async def _first_token(
        self, server: _Runner, device: _Runner, start: Start, sent: int
    ) -> tuple[_Runner, Tokens]:
        """Start both by plan; the winner and its first tokens. The other one is cancelled.

        Who is not to start does, all the same, if the one that did stalls.
        """
        began_s = time.monotonic()
        waiting = {server: start.server_s, device: start.device_s}
        for runner, other in ((server, device), (device, server)):
            if waiting[runner] == NEVER:
                waiting[runner] = self._contest.patience_s(other.side, sent)
        running: dict[asyncio.Task[Tokens], _Runner] = {}
        try:
            while True:
                soonest = min(waiting, key=waiting.__getitem__, default=None)
                wait_s = NEVER if soonest is None else began_s + waiting[soonest] - time.monotonic()
                if soonest is not None and (wait_s <= 0 or not running):  # there may be nobody to wait for
                    del waiting[soonest]
                    running[soonest.begin()] = soonest
                    continue
                done, _ = await asyncio.wait(
                    running,
                    timeout=None if wait_s == NEVER else wait_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    try:
                        return running.pop(task), task.result()
                    except LOST:
                        if not running and not waiting:
                            raise
        finally:
            for runner in running.values():
                runner.lose()

    async def _hand_over(
        self, source: _Runner, target: _Runner, sent: int, stats: JobStats
    ) -> tuple[_Runner, Tokens]:
        """(who goes on after so many tokens, its first ones)."""
        await source.pause()
        try:
            limit_s = self._contest.patience_s(target.side, sent)
            async with asyncio.timeout(None if limit_s == NEVER else limit_s):
                tokens = await target.first()
        except (*LOST, TimeoutError):
            target.lose(fit=False)
            stats.migrations_failed += 1
            await source.resume()
            return source, await source.next()
        stats.migrations += 1
        source.lose()
        return target, tokens


class _Runner:
    """One endpoint's part in a race. fit: it may still be asked."""

    def __init__(self, engine: Engine, side: Side, job: Job, log: TokenLog, contest: Contest) -> None:
        self.side, self.fit = side, True
        self._engine, self._job, self._log, self._contest = engine, job, log, contest
        self._beginning: asyncio.Task[Tokens] | None = None
        self._stream: AsyncGenerator[Tokens, None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._began_s = 0.0

    def begin(self) -> asyncio.Task[Tokens]:
        """Start; done with the first tokens."""
        self._beginning = asyncio.ensure_future(self._begin())
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
        self._began_s = time.monotonic()
        self._contest.began(self.side)
        job, known = self._job, len(self._job.prompt) + len(self._log)
        try:
            await self._engine.open(job.session, job.prompt, job.sampling, self._log.ids)
            self._generate()
            tokens = await self.next()
        except LOST:
            self.fit = False
            raise
        self._contest.first_token(self.side, known, time.monotonic() - self._began_s)
        return tokens

    async def next(self) -> Tokens:
        """Its next tokens."""
        assert self._stream is not None
        tokens = await anext(self._stream, None)
        if tokens is None:
            raise EngineStopped("the answer ended without saying why")
        return tokens

    def piece(self, tokens: Tokens) -> Piece:
        """The tokens as the log's next."""
        origins = [ORIGINS[self.side]] * len(tokens.ids)
        return Piece(len(self._log), tokens.ids, origins, tokens.finish, tokens.logprobs)

    async def pause(self) -> None:
        """Generate no further; what the log doesn't have is forgotten."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()

    async def resume(self) -> None:
        """Go on from the log's end after a pause."""
        await self._engine.extend(self._job.session, len(self._log), [])
        self._generate()

    def lose(self, fit: bool = True) -> None:
        """Stop computing, without keeping the answer waiting. fit: it may be asked again."""
        self.fit = self.fit and fit
        beginning, self._beginning = self._beginning, None
        if beginning is None:
            return
        if not beginning.done():
            self._contest.stopped(self.side, time.monotonic() - self._began_s)
            beginning.cancel()
        self._leaving = asyncio.ensure_future(self._cancel(beginning))

    async def leave(self) -> None:
        """At the end nothing of it runs on; a session that is still open is the executor's to close."""
        if self._beginning is not None and not self._beginning.done():
            self.lose()
        await self.pause()
        if self._leaving is not None:
            await asyncio.shield(self._leaving)

    def _generate(self) -> None:
        self._stream = cast(AsyncGenerator[Tokens, None], self._engine.generate(self._job.session))

    async def _cancel(self, beginning: asyncio.Task[Tokens]) -> None:
        await asyncio.wait((beginning,))
        if not beginning.cancelled():
            beginning.exception()  # whoever waited for it knows
        with suppress(EngineError):  # it is gone, and the session with it
            await self.pause()
            if self.fit:  # otherwise nobody comes back to it, and the executor ends its session
                await self._engine.cancel(self._job.session)
