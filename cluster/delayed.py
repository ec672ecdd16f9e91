"""An engine behind a service's latency: its first token comes no sooner than drawn. Emulated time, real tokens."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from random import Random
from typing import cast

from cluster.latency import LogNormal
from cluster.timer import precise_timer
from engine.base import Draft, DraftProbs, Engine, EngineInfo, EngineStats, Sampling, Tokens, Verdict


class Delayed:
    """The Engine protocol over an engine; the first answer of each session waits for the time drawn for it since it
    was opened, if the engine has not taken longer anyway."""

    def __init__(self, engine: Engine, latency: LogNormal, seed: int = 0) -> None:
        self._engine, self._latency, self._random = engine, latency, Random(seed)
        self._not_before_s: dict[int, float] = {}

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    async def open(
        self, session: int, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
    ) -> None:
        not_before_s = time.monotonic() + self._latency.draw(self._random)
        await self._engine.open(session, prompt, sampling, log)
        self._not_before_s[session] = not_before_s

    async def generate(self, session: int) -> AsyncIterator[Tokens]:
        async with aclosing(cast(AsyncGenerator[Tokens, None], self._engine.generate(session))) as stream:
            async for tokens in stream:
                await self._wait(session)
                yield tokens

    async def verify(self, session: int, drafts: Sequence[int], probs: DraftProbs | None = None) -> Verdict:
        verdict = await self._engine.verify(session, drafts, probs)
        await self._wait(session)
        return verdict

    async def draft(self, session: int, position: int, tokens: Sequence[int], window: int) -> Draft:
        draft = await self._engine.draft(session, position, tokens, window)
        await self._wait(session)
        return draft

    async def extend(self, session: int, position: int, tokens: Sequence[int]) -> None:
        await self._engine.extend(session, position, tokens)

    async def cancel(self, session: int) -> None:
        self._not_before_s.pop(session, None)
        await self._engine.cancel(session)

    async def stats(self) -> EngineStats:
        stats = await self._engine.stats()
        stats.emulated = True
        return stats

    async def close(self) -> None:
        await self._engine.close()

    async def _wait(self, session: int) -> None:
        if (not_before_s := self._not_before_s.pop(session, None)) is not None:
            await precise_timer().sleep_until(not_before_s)
