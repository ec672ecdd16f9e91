"""What a window policy should know and rounds do not show: the link's round-trip time, the target's queue."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from types import TracebackType
from typing import Protocol

from engine.base import Engine, EngineError
from policies.pair import Pair

EVERY_S = 0.25


class Remote(Protocol):
    """An engine behind a link, once its session is open."""

    engine: Engine

    async def ready(self) -> None: ...


class Observer:
    """Keeps a pair's `rtt_s` and `queue` as they are, from `async with` to its end.

    A light question crosses the link beside every draft, so that the drafter's time can be told from the
    link's also when that has just changed; while rounds are fused and nothing else crosses, every EVERY_S.

    batch_limit: sessions a step of the target takes; 0: not known, and neither then is the queue.
    """

    def __init__(self, pair: Pair, target: Engine, device: Remote, batch_limit: int) -> None:
        self._pair, self._target, self._device, self._batch_limit = pair, target, device, batch_limit
        self._due = asyncio.Event()

    def drafting(self) -> None:
        """The device is asked for a draft in this moment."""
        self._due.set()

    async def __aenter__(self) -> Observer:
        self._task = asyncio.get_running_loop().create_task(self._observe())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()

    async def _observe(self) -> None:
        with suppress(EngineError):  # the next round meets the same error, and knows what to do with it
            await self._device.ready()
            queue_seen_s = float("-inf")
            while True:
                self._due.clear()
                began = time.perf_counter()
                await self._device.engine.stats()
                self._pair.rtt_s = time.perf_counter() - began
                if self._batch_limit and began - queue_seen_s >= EVERY_S:
                    queue_seen_s = began
                    self._pair.queue = (await self._target.stats()).sessions / self._batch_limit
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVERY_S):
                        await self._due.wait()
