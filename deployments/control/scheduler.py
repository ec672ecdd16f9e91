"""The scheduler: knows the running endpoints. Devices register here; replicas are listed through Serve."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.config.reconfigure import Live, in_place
from tandem.deployments.pools.device_hosts import Edge, HostSettings
from tandem.deployments.pools.replica import EndpointSettings
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.routing.directory import Directory, Snapshot
from tandem.policies.autoscaling.handover import ReplicaQueue, handed_over

logger = logging.getLogger("ray.serve")

REFRESH_S = 0.5
"""Interval at which replicas are polled for their load."""
REPLICAS_S = 2.0
"""Longest that a pool's replicas may take to answer."""
EXPIRY_S = 4.0
"""Time after which a silent device is unlisted."""
FORGET_S = 3.0
"""Seconds that a router's last report of waiting requests is valid."""


class SchedulerLive(Live):
    """Settings that a scheduler takes over while it runs.

    hosts: device hosts, all of them.
    """

    hosts: tuple[HostSettings, ...] = ()


class Scheduler:
    """Keeps the directory and hands out snapshots of it. Sees to it that the device hosts that the settings list are
    there."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self,
        pools: Mapping[str, DeploymentHandle],
        hosts: Sequence[HostSettings],
        endpoint: EndpointSettings,
    ) -> None:
        self._pools, self._hosts = dict(pools), tuple(hosts)
        # Versions that no predecessor can have reached, so that its followers get everything.
        self._directory = Directory(EXPIRY_S, version=time.time_ns() // 1000)
        self._directory.expect(_names(hosts))
        self._news, self._listed = asyncio.Event(), asyncio.Event()
        self._waiting: Mapping[str, float] = {}
        self._waiting_until_s = 0.0
        self._waking: dict[str, asyncio.Task[None]] = {}
        context = serve.get_replica_context()
        myself = serve.get_deployment_handle(context.deployment, context.app_name)
        self._edge = Edge(
            context.app_name, hosts, myself.register.remote, endpoint, context.replica_id.unique_id
        )
        loop = asyncio.get_running_loop()
        self._refreshing = loop.create_task(self._refresh())
        self._tending = loop.create_task(self._edge.tend())

    def reconfigure(self, config: dict[str, Any]) -> None:
        """Serve's `user_config`, as SchedulerLive."""
        if (now := in_place(SchedulerLive(hosts=self._hosts), config)) is not None:
            self._edge.want(now.hosts)
            self._directory.expect(_names(now.hosts))

    async def register(self, records: Sequence[DeviceRecord]) -> int:
        """Called by device hosts and the gateway, again and again: it is also their sign of life. The version of the
        snapshot from which on the devices are in it."""
        if self._directory.register(records, time.monotonic()):
            self._tell()
        return self._directory.version

    async def lost(self, name: str, address: str) -> None:
        """Record that a device did not answer; it and others of its host are unlisted until they register again."""
        if self._directory.lost(name, address, time.monotonic()):
            self._tell()

    async def waiting(self, requests: Mapping[str, float]) -> None:
        """Record the requests without a replica, by pool; the router repeats this report."""
        self._waiting, self._waiting_until_s = requests, time.monotonic() + FORGET_S

    async def snapshot(self, after: int = -1, wait_s: float = 0.0) -> Snapshot:
        """Return the changes since version `after`, or everything if that is unknown; waits up to `wait_s` seconds for
        a change, and until replicas were listed once."""
        await self._listed.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._directory.version == after:
                    await self._news.wait()
        return self._directory.since(after)

    async def _refresh(self) -> None:
        while True:
            await asyncio.gather(*(self._list(pool, handle) for pool, handle in self._pools.items()))
            if self._directory.update(time.monotonic()):
                self._tell()
            self._listed.set()
            await asyncio.sleep(REFRESH_S)

    async def _list(self, pool: str, handle: DeploymentHandle) -> None:
        waiting = self._waiting.get(pool, 0.0) if time.monotonic() < self._waiting_until_s else 0.0
        up = self._directory.count(pool)
        if waiting and not up:
            self._wake(pool, handle)
        try:
            async with asyncio.timeout(REPLICAS_S):
                asked = handle.broadcast("state", waiting / max(up, 1))
                states = await asked.results_async(return_exceptions=True)
        except TimeoutError:  # one of them hangs: Serve will see to that, and the rest are still there
            logger.warning("not every %s says how busy it is", pool)
            return
        except Exception as error:  # no replica is up yet, or the only one has just died
            logger.debug("cannot list %s: %r", pool, error)
            states = []
        listed: list[EndpointInfo] = [each for state in states if isinstance(state, list) for each in state]
        known = self._directory.addresses(pool)
        self._directory.list_pool(pool, listed)
        await self._hand_over(pool, handle, [each for each in listed if each.address in known])

    async def _hand_over(self, pool: str, handle: DeploymentHandle, replicas: Sequence[EndpointInfo]) -> None:
        """Have sessions that wait at one of these replicas go to others of them, which the routers know by now."""
        queues = {each.address: ReplicaQueue(each.load.waiting, each.load.room) for each in replicas}
        if not (counts := handed_over(queues)):
            return
        try:
            async with asyncio.timeout(REPLICAS_S):
                await handle.broadcast("hand_over", counts).results_async(return_exceptions=True)
        except Exception as error:
            logger.warning("sessions that wait at %s stay there: %r", pool, error)

    def _wake(self, pool: str, handle: DeploymentHandle) -> None:
        """Wait for a replica of an empty pool, for which Serve then starts one; once at a time."""
        if pool not in self._waking or self._waking[pool].done():
            self._waking[pool] = asyncio.get_running_loop().create_task(_woken(pool, handle))

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def check_health(self) -> None:
        """Serve restarts the scheduler when one of its loops has ended."""
        for task in (self._refreshing, self._tending):
            if task.done():
                raise RuntimeError(f"a loop ended: {task}")

    async def __del__(self) -> None:
        for task in (self._refreshing, self._tending, *self._waking.values()):
            task.cancel()
        self._edge.stop()


async def _woken(pool: str, handle: DeploymentHandle) -> None:
    try:
        await handle.wake.remote()
    except Exception as error:
        logger.warning("%s does not wake: %r", pool, error)


def _names(hosts: Iterable[HostSettings]) -> list[str]:
    return [device.name for host in hosts for device in host.devices]
