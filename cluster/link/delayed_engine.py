"""An engine behind an emulated service latency: its first token comes no sooner than drawn, the others follow at the
engine's own pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from random import Random
from typing import Any

from tandem.cluster.link.latency import LogNormal
from tandem.cluster.link.timer import precise_timer
from tandem.engine.base import (
    Engine,
    EngineInfo,
    EngineStats,
    Extend,
    Forward,
    Operation,
    Sampling,
    Session,
    Tokens,
)
from tandem.engine.core.token_queue import TokenQueue
from tandem.engine.sessions.session import BaseSession


class Delayed:
    """The Engine protocol over an engine. The first answer of each session comes no sooner than its drawn latency after
    `open`; a stream is delayed as a whole."""

    def __init__(self, engine: Engine, latency: LogNormal, seed: int = 0) -> None:
        self._engine, self._latency, self._random = engine, latency, Random(seed)

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    async def open(
        self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
    ) -> DelayedSession:
        not_before_s = precise_timer().time() + self._latency.draw(self._random)
        inner = await self._engine.open(prompt, sampling, log)
        return DelayedSession(inner, self.info, not_before_s)

    async def stats(self) -> EngineStats:
        stats = await self._engine.stats()
        stats.emulated = True
        return stats

    async def close(self) -> None:
        await self._engine.close()


class DelayedSession(BaseSession):
    """A session of `Delayed`. not_before_s: time of its first answer at the earliest."""

    def __init__(self, inner: Session, info: EngineInfo, not_before_s: float) -> None:
        super().__init__(info)
        self._inner, self._not_before_s = inner, not_before_s
        self._stream: TokenQueue | None = None  # of the running generate

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        self._begin("generate")
        stream = self._stream = TokenQueue()
        pump = asyncio.get_running_loop().create_task(self._pump(stream))
        try:
            async for tokens in stream:
                yield tokens
        finally:
            pump.cancel()
            await asyncio.wait((pump,))
            self._stream = None
            self._finish()

    async def _pump(self, stream: TokenQueue) -> None:
        """Pass the engine's tokens on, all as much later as the first has to be."""
        timer, late_s = precise_timer(), None
        try:
            async with aclosing(self._inner.generate()) as tokens_of_engine:
                async for tokens in tokens_of_engine:
                    now_s = timer.time()
                    if late_s is None:
                        late_s = max(0.0, self._not_before_s - now_s)
                    if late_s:
                        timer.call_at(now_s + late_s, partial(stream.put, tokens))
                    else:
                        stream.put(tokens)
        except Exception as error:
            stream.put(error)

    async def _run(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Extend):
            return await self._inner.call(operation)
        began_s = self._loop.time()
        result = await self._inner.call(operation)
        await self._arrival()
        if isinstance(operation, Forward):
            result.took_s = self._loop.time() - began_s
        return result

    async def cancel(self) -> None:
        if self._end():
            if self._stream is not None and self._ended is not None:
                self._stream.put(self._ended)
            await self._inner.cancel()

    async def _arrival(self) -> None:
        timer = precise_timer()
        if timer.time() < self._not_before_s:
            await self._wait(partial(timer.call_at, self._not_before_s))
