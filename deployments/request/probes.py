"""Probes: asking an endpoint that is late whether it is still there."""

from __future__ import annotations

import asyncio
from math import inf

from tandem.deployments.lru import LRUTable
from tandem.engine.base import Engine, EngineError
from tandem.policies.reader.stall_timeout import PROBE_S

ENDPOINTS = 10_000
"""Most whose last answer is remembered."""


class Probes:
    """One probe of an engine at a time, for all of a process's requests that wait for it.

    It asks for the engine's statistics, which each process on the way passes on, so that a stopped one is noticed
    wherever it is. An engine that is only busy answers.
    """

    def __init__(self) -> None:
        # by the key of an endpoint
        self._running: dict[str, asyncio.Task[bool]] = {}
        self._heard_s: LRUTable[str, float] = LRUTable(ENDPOINTS)

    def heard(self, key: str, since_s: float) -> bool:
        """Return whether an endpoint has answered since that time of the event loop's clock."""
        return self._heard_s.get(key, -inf) >= since_s

    async def answers(self, key: str, engine: Engine) -> bool:
        """Return whether an endpoint's engine says anything within PROBE_S."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.get_running_loop().create_task(self._ask(key, engine))
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(task)

    async def _ask(self, key: str, engine: Engine) -> bool:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(PROBE_S):
                await engine.stats()
        except TimeoutError:
            return False
        except (EngineError, OSError):  # it tells those who wait for it, too
            pass
        self._heard_s[key] = loop.time()
        return True
