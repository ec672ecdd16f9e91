"""A seat: one request's place at one endpoint, with its time limits and its stopwatch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from cluster.frames import ProtocolError, Unauthorized, UnknownEngine
from deployments.assignment import EndpointInfo, EndpointLost
from deployments.job import JobStats
from engine.base import (
    Draft,
    DraftProbs,
    Engine,
    EngineError,
    EngineInfo,
    EngineStats,
    EngineStopped,
    Sampling,
    SessionCancelled,
    Tokens,
    UnknownSession,
    Verdict,
)

Dial = Callable[[EndpointInfo], Awaitable[Engine]]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait before an endpoint counts as lost, seconds.

    connect, open: to reach it and be admitted; first: for its first answer, prefill and queue included;
    step: for every later one, and for the first of an endpoint that the request can do without.
    """

    connect_s: float = 5.0
    open_s: float = 15.0
    first_s: float = 120.0
    step_s: float = 30.0


# Nobody but this seat ends its session, so these all mean that the endpoint is not what it was. (Another
# token is that of another generation of the application, met while a new one is being deployed.)
GONE = (EngineStopped, SessionCancelled, UnknownSession, UnknownEngine, Unauthorized, ProtocolError)


class Seat:
    """An Engine for one session: dials when opened, waits no longer than `patience`, and turns whatever
    means that the endpoint cannot go on into EndpointLost.

    stats: seconds spent per stage (connect, open, decode, verify, draft), tokens that the endpoint takes in and gives
    out, and what they cost it are added to these.
    expendable: every refusal counts as lost, since the request can do without this endpoint.
    report: told once if the endpoint is gone (and did not merely refuse); lost: this request does without it.
    """

    def __init__(
        self,
        endpoint: EndpointInfo,
        dial: Dial,
        patience: Patience,
        stats: JobStats,
        expendable: bool = False,
        report: Callable[[EndpointInfo], None] = lambda _: None,
    ) -> None:
        self.endpoint = endpoint
        self.lost = self._gone = False
        self._dial, self._patience, self._stats = dial, patience, stats
        self._expendable, self._report = expendable, report
        self._reasons = (EngineError,) if expendable else GONE
        self._engine: Engine | None = None
        self._answered = False
        self._session: int | None = None

    @property
    def info(self) -> EngineInfo:
        return self._connected.info

    @property
    def _connected(self) -> Engine:
        if self._engine is None:
            raise UnknownSession("this seat is not open")
        return self._engine

    async def open(
        self, session: int, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
    ) -> None:
        async with self._stage("connect", self._patience.connect_s):
            self._engine = await self._dial(self.endpoint)
        self._session = session
        self._book(len(prompt) + len(log), 0)
        async with self._stage("open", self._patience.open_s):
            await self._engine.open(session, prompt, sampling, log)

    async def generate(self, session: int) -> AsyncGenerator[Tokens, None]:
        async with aclosing(self._connected.generate(session)) as stream:
            while True:
                async with self._stage("decode", self._wait_s):
                    tokens = await anext(stream, None)
                if tokens is None:
                    return
                self._book(0, len(tokens.ids))
                yield tokens

    async def verify(self, session: int, drafts: Sequence[int], probs: DraftProbs | None = None) -> Verdict:
        async with self._stage("verify", self._wait_s):
            verdict = await self._connected.verify(session, drafts, probs)
        self._book(0, len(verdict.ids))
        return verdict

    async def draft(self, session: int, position: int, tokens: Sequence[int], window: int) -> Draft:
        async with self._stage("draft", self._wait_s):
            draft = await self._connected.draft(session, position, tokens, window)
        self._book(0, len(draft.ids))
        return draft

    async def extend(self, session: int, position: int, tokens: Sequence[int]) -> None:
        async with self._stage("extend", self._wait_s):
            await self._connected.extend(session, position, tokens)

    async def cancel(self, session: int) -> None:
        self._session = None  # once is enough
        async with self._stage("cancel", self._patience.open_s):
            await self._connected.cancel(session)

    async def stats(self) -> EngineStats:
        async with self._stage("stats", self._patience.open_s):
            return await self._connected.stats()

    async def close(self) -> None:
        """Give the seat back: end the session if one was opened. The engine itself stays as it is."""
        if self._engine is not None and self._session is not None:
            await self.cancel(self._session)

    def _book(self, taken_in: int, given_out: int) -> None:
        used = self._stats.used
        if self.endpoint.device:
            self._stats.joules += self.endpoint.joules.of(taken_in, given_out)
            used.device_in += taken_in
            used.device_out += given_out
        else:
            used.server_in += taken_in
            used.server_out += given_out

    @property
    def _wait_s(self) -> float:
        if self._answered or self._expendable:
            return self._patience.step_s
        return self._patience.first_s

    def _lose(self, why: str, gone: bool) -> EndpointLost:
        self.lost = True
        if gone and not self._gone:
            self._gone = True
            self._report(self.endpoint)
        return EndpointLost(self.endpoint, why)

    @asynccontextmanager
    async def _stage(self, name: str, limit_s: float) -> AsyncIterator[None]:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(limit_s):
                yield
            self._answered = self._answered or name in ("decode", "verify", "draft")
        except TimeoutError as error:
            raise self._lose(f"no answer to {name} within {limit_s:g} s", gone=True) from error
        except (*self._reasons, ConnectionError, OSError) as error:
            gone = isinstance(error, (*GONE, ConnectionError, OSError))
            raise self._lose(f"{type(error).__name__}: {error}", gone) from error
        finally:
            seconds = self._stats.stages_s
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
