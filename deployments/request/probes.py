"""Probes: asking an endpoint that is late whether it is still there."""

from __future__ import annotations

import asyncio
from math import inf

from tandem.deployments.lru import LRUTable
from tandem.deployments.request.assignment import EndpointInfo
from tandem.engine.base import Engine, EngineError
from tandem.policies.reader.stall_timeout import PROBE_S

ENDPOINTS = 10_000
"""Most whose last answer is remembered."""


class Probes:
    """One probe of an engine at a time, for all of a process's requests that wait for it.

    It asks for the engine's statistics, which each process on the way passes on, so that a stopped one is noticed
    wherever it is. An engine that is only busy answers. One that does not is silent until its answer comes after all.
    One that says that it hangs is no better, as long as it says so.
    """

    def __init__(self) -> None:
        # by the key of an endpoint
        self._running: dict[str, asyncio.Task[bool]] = {}
        self._silent: dict[str, tuple[EndpointInfo, float]] = {}  # and since when
        self._heard_s: LRUTable[str, float] = LRUTable(ENDPOINTS)

    @property
    def silent(self) -> tuple[str, ...]:
        """Keys of the replicas that are silent now."""
        return tuple(key for key, (endpoint, _) in self._silent.items() if not endpoint.device)

    def heard_s(self, key: str) -> float:
        """Return when an endpoint has answered last, on the event loop's clock; minus infinity if it never has."""
        return self._heard_s.get(key, -inf)

    async def answers(self, endpoint: EndpointInfo, engine: Engine, reached_s: float = -inf) -> bool:
        """Return whether an endpoint's engine says within PROBE_S that it goes on; at once if it is silent already.

        reached_s: time of the event loop's clock since which it can be reached; an earlier silence says nothing.
        """
        key = endpoint.key
        if key in self._silent and self._silent[key][1] >= reached_s:
            return False
        asked_s = asyncio.get_running_loop().time()
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.get_running_loop().create_task(self._ask(key, engine))
        done, _ = await asyncio.wait((task,), timeout=PROBE_S)
        if not done:
            self._silent[key] = endpoint, asked_s
        return bool(done) and task.result()

    async def _ask(self, key: str, engine: Engine) -> bool:
        hangs = False
        try:
            hangs = (await engine.stats()).overdue_s > 0
        except (EngineError, OSError):  # it tells those who wait for it, too
            pass
        finally:
            del self._running[key]
            self._silent.pop(key, None)
        if not hangs:
            self._heard_s[key] = asyncio.get_running_loop().time()
        return not hangs
