"""An engine behind a service's latency: its first token comes no sooner than drawn, and the others follow it as they
follow it at the engine. Emulated time, real tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from random import Random

from tandem.cluster.link.latency import LogNormal
from tandem.cluster.link.timer import precise_timer
from tandem.engine.base import (
    DraftProbs,
    Drafts,
    Engine,
    EngineInfo,
    EngineStats,
    Forwarded,
    Sampling,
    Session,
    Tensor,
    Tokens,
    Verdict,
)
from tandem.engine.core.stream import Stream
from tandem.engine.session import BaseSession


class Delayed:
    """The Engine protocol over an engine; the first answer of each session waits for the time drawn for it since it
    was opened, if the engine has not taken longer anyway. A stream is late as a whole."""

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
    """A session of `Delayed`; not_before_s: when its first answer may come."""

    def __init__(self, inner: Session, info: EngineInfo, not_before_s: float) -> None:
        super().__init__(info)
        self._inner, self._not_before_s = inner, not_before_s
        self._stream: Stream | None = None  # of the running generate

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        self._begin("generate")
        stream = self._stream = Stream()
        pump = asyncio.get_running_loop().create_task(self._pump(stream))
        try:
            async for tokens in stream:
                yield tokens
        finally:
            pump.cancel()
            await asyncio.wait((pump,))
            self._stream, self._busy = None, False

    async def _pump(self, stream: Stream) -> None:
        """Pass the engine's tokens on, as much later as the first of them has to be."""
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

    async def verify(self, drafts: Sequence[int], probs: DraftProbs | None = None) -> Verdict:
        self._begin("verify")
        try:
            verdict = await self._inner.verify(drafts, probs)
            await self._arrival()
            return verdict
        finally:
            self._busy = False

    async def draft(self, position: int, tokens: Sequence[int], window: int) -> Drafts:
        self._begin("draft")
        try:
            draft = await self._inner.draft(position, tokens, window)
            await self._arrival()
            return draft
        finally:
            self._busy = False

    async def forward(self, position: int, hidden: Tensor, wanted: int) -> Forwarded:
        began_s = self._loop.time()
        async with self._forwards:
            self._begin("forward")
            try:
                forwarded = await self._inner.forward(position, hidden, wanted)
                await self._arrival()
            finally:
                self._busy = False
        forwarded.took_s = self._loop.time() - began_s
        return forwarded

    async def extend(self, position: int, tokens: Sequence[int]) -> None:
        self._begin("extend")
        try:
            await self._inner.extend(position, tokens)
        finally:
            self._busy = False

    async def cancel(self) -> None:
        if self._end():
            if self._stream is not None and self._ended is not None:
                self._stream.put(self._ended)
            await self._inner.cancel()

    async def _arrival(self) -> None:
        timer = precise_timer()
        if timer.time() < self._not_before_s:
            await self._wait(partial(timer.call_at, self._not_before_s))
