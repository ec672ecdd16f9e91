"""What a window policy should know and rounds do not show: the link's round-trip time, the target's queue.

While rounds are fused nothing crosses the link, so a light question does, a few times a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from engine.base import Engine, EngineError
from policies.pair import Pair

EVERY_S = 0.25


class Remote(Protocol):
    """An engine behind a link, once its session is open."""

    engine: Engine

    async def ready(self) -> None: ...


@asynccontextmanager
async def observing(
    pair: Pair, target: Engine, device: Remote, batch_limit: int | None
) -> AsyncIterator[None]:
    """Keep the pair's `rtt_s` and `queue` as they are, as long as this lasts; batch_limit None: do not."""
    if batch_limit is None:
        yield
        return
    task = asyncio.get_running_loop().create_task(_observe(pair, target, device, batch_limit))
    try:
        yield
    finally:
        task.cancel()


async def _observe(pair: Pair, target: Engine, device: Remote, batch_limit: int) -> None:
    try:
        await device.ready()
        while True:
            began = time.perf_counter()
            await device.engine.stats()
            pair.rtt_s = time.perf_counter() - began
            if batch_limit:
                pair.queue = min(1.0, (await target.stats()).sessions / batch_limit)
            await asyncio.sleep(EVERY_S)
    except EngineError:
        pass  # the next round meets the same error, and knows what to do with it
