"""Observer of state that a window policy needs and rounds do not show: round-trip times, the target's queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tandem.deployments.request.session import EndpointSession
from tandem.engine.base import Drafts, EngineError
from tandem.policies.speculation.history import PairHistory

EVERY_S = 0.25
"""Greatest age of an observation before a new one is requested."""


class Observer:
    """Keeps a pair's `rtt_s` and `queue` up to date while rounds go on.

    A draft says how long it took the device; the rest of the wait was the link. While rounds are fused and no draft
    crosses the link, a light question does, every EVERY_S. The target is asked as often, by one request for all: how
    many sessions it has, and if it is behind a link, how long that takes.

    ready: returns once the device's session is open.
    batch_limit: sessions a step of the target takes; 0: not known, and neither then is the queue.
    device_s, target_s: round-trip times of the links, seconds, at first as configured.
    """

    __slots__ = (
        "_asking",
        "_batch_limit",
        "_device",
        "_device_known_s",
        "_loop",
        "_pair",
        "_ready",
        "_target",
        "device_s",
        "target_s",
    )

    def __init__(
        self,
        pair: PairHistory,
        target: EndpointSession,
        device: EndpointSession,
        ready: Callable[[], Awaitable[None]],
        batch_limit: int,
    ) -> None:
        self._pair, self._target, self._device = pair, target, device
        self._ready, self._batch_limit = ready, batch_limit
        self.device_s, self.target_s = device.endpoint.rtt_s, target.endpoint.rtt_s
        self._loop = asyncio.get_running_loop()
        self._device_known_s = float("-inf")
        self._asking: dict[Callable[[], Awaitable[None]], asyncio.Task[None]] = {}

    def drafted(self, draft: Drafts) -> None:
        """Take in the time of a device's draft."""
        if draft.took_s:
            self._know_device(max(0.0, self._device.took_s - draft.took_s))

    def look(self) -> None:
        """Query outdated state in the background."""
        now_s = self._loop.time()
        if now_s - self._device_known_s >= EVERY_S:
            self._device_known_s = now_s  # or will be; a silent one is not queried in every round
            self._ask(self._ask_device)
        asked_s, target = self._pair.target.queue_asked_s, self._target
        if now_s - asked_s >= EVERY_S and (self._batch_limit or target.endpoint.rtt_s):
            self._pair.target.queue_asked_s = now_s
            self._ask(self._ask_target)

    def stop(self) -> None:
        """Stop all observations."""
        for task in self._asking.values():
            task.cancel()

    def _ask(self, question: Callable[[], Awaitable[None]]) -> None:
        task = self._asking.get(question)
        if task is None or task.done():
            self._asking[question] = self._loop.create_task(_asked(question))

    async def _ask_device(self) -> None:
        await self._ready()
        asked_s = self._loop.time()
        await self._device.stats()
        self._know_device(self._loop.time() - asked_s)

    async def _ask_target(self) -> None:
        asked_s = self._loop.time()
        stats = await self._target.stats()
        if self._target.endpoint.rtt_s:
            self.target_s = self._loop.time() - asked_s
            self._pair.rtt_s = self.device_s + self.target_s
        self._pair.target.base_s, self._pair.target.position_s = stats.base_s, stats.token_s
        if self._batch_limit:
            self._pair.target.queue = stats.sessions / self._batch_limit

    def _know_device(self, link_s: float) -> None:
        self._device_known_s = self._loop.time()
        self.device_s = link_s
        self._pair.rtt_s = link_s + self.target_s


async def _asked(question: Callable[[], Awaitable[None]]) -> None:
    with suppress(EngineError, OSError):  # the next round meets this error and handles it
        await question()
