"""Client of the scheduler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from ray.serve.handle import DeploymentHandle

from tandem.cluster.devices.orders import Registration
from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.control.calls import HandleClient
from tandem.deployments.control.orders import DeviceOrder, OrdersTold
from tandem.deployments.control.scheduler import Scheduler
from tandem.deployments.routing.directory import Snapshot

logger = logging.getLogger("ray.serve")

TELL_S = 0.5
"""Seconds between two messages about what requests wait for."""
POLL_S = 5.0
"""Longest that the scheduler waits for changes before it answers."""


class SchedulerClient(HandleClient):
    """Methods of the scheduler. answer_s: how long it may take to answer, seconds, beyond which it is Unavailable."""

    def __init__(self, scheduler: DeploymentHandle, answer_s: float) -> None:
        super().__init__(scheduler)
        self._answer_s = answer_s

    async def register(self, records: Sequence[DeviceRecord]) -> Registration:
        return await self.ask(self._answer_s, Scheduler.register, records)

    async def orders(self) -> OrdersTold:
        return await self.ask(self._answer_s, Scheduler.orders)

    async def order_replica(self, name: str, drained: bool) -> OrdersTold:
        """Raises as Scheduler.order_replica."""
        return await self.ask(self._answer_s, Scheduler.order_replica, name, drained)

    async def order_device(self, name: str, order: DeviceOrder) -> OrdersTold:
        """Raises as Scheduler.order_device."""
        return await self.ask(self._answer_s, Scheduler.order_device, name, order)

    def lost(self, device: str, address: str) -> None:
        self.tell(Scheduler.lost, device, address)

    def waiting(self, requests: Mapping[str, float]) -> None:
        self.tell(Scheduler.waiting, requests)

    async def snapshot(self, after: int) -> Snapshot:
        """Return the changes since a version, at the latest after POLL_S."""
        return await self.ask(self._answer_s + POLL_S, Scheduler.snapshot, after, wait_s=POLL_S)

    async def follow(self, see: Callable[[Snapshot], object]) -> None:
        """Pass on what is up, and then every change, for ever."""
        version = 0
        while True:
            try:
                snapshot = await self.snapshot(version)
            except Exception as error:  # the scheduler restarts: go on with what is known
                logger.warning("no news from the scheduler: %s", type(error).__name__)
                await asyncio.sleep(0.5)
                continue
            version = snapshot.version
            see(snapshot)

    async def keep_telling(self, waiting: Callable[[], Mapping[str, float]]) -> None:
        """Tell what requests wait for, by pool, as long as any do."""
        told = True  # perhaps by a predecessor
        while True:
            await asyncio.sleep(TELL_S)
            requests = dict(waiting())
            if told or any(requests.values()):
                self.waiting(requests)
            told = any(requests.values())
