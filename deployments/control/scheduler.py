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

from tandem.cluster.devices.orders import Registration
from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.note import Note
from tandem.deployments.config.reconfigure import Live, in_place
from tandem.deployments.control.calls import refuses
from tandem.deployments.control.kept_orders import KeptOrders
from tandem.deployments.control.orders import DeviceOrder, OrdersTold, drain, order
from tandem.deployments.messages import carry_messages
from tandem.deployments.pools.device_hosts import Edge, HostSettings
from tandem.deployments.pools.replica import EndpointSettings
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.routing.directory import Directory, Snapshot
from tandem.engine.base import EngineError
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
GATHER_S = 1.5
"""Seconds from the first question to a successor in which devices register with it, before it answers; hosts and
gateways do every second. Meanwhile routers go on with what its predecessor knew."""


class SchedulerLive(Live):
    """Settings that a scheduler takes over while it runs.

    hosts: device hosts, all of them.
    """

    hosts: tuple[HostSettings, ...] = ()


@refuses(EngineError)
class Scheduler:
    """Keeps the directory and hands out snapshots of it. Sees to it that the device hosts that the settings list are
    there."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self,
        pools: Mapping[str, DeploymentHandle],
        hosts: Sequence[HostSettings],
        endpoint: EndpointSettings,
    ) -> None:
        carry_messages()
        self._pools, self._hosts = dict(pools), tuple(hosts)
        # Versions that no predecessor can have reached, so that its followers get everything.
        self._directory = Directory(EXPIRY_S, version=time.time_ns() // 1000)
        self._directory.expect(_names(hosts))
        self._news, self._listed = asyncio.Event(), asyncio.Event()
        self._drained: dict[str, list[EndpointInfo]] = {}
        self._waiting: Mapping[str, float] = {}
        self._waiting_until_s = 0.0
        self._waking: dict[str, asyncio.Task[None]] = {}
        self._asked_s: float | None = None  # for the first time
        context = serve.get_replica_context()
        self._orders = KeptOrders(Note(f"tandem orders of {context.app_name}"))
        await self._orders.read()
        self._forgetting: asyncio.Task[None] | None = None
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
            self._hosts = now.hosts
            self._edge.want(now.hosts)
            self._directory.expect(_names(now.hosts))

    async def register(self, records: Sequence[DeviceRecord]) -> Registration:
        """Called by device hosts and the gateway, again and again: it is also their sign of life, and tells them of
        operators' orders."""
        orders = self._orders.now.devices
        there = [record for record in records if not orders.unreachable(record.name)]
        if self._directory.register(there, time.monotonic()):
            self._tell()
        moved = frozenset(record.name for record in there if self._directory.is_elsewhere(record))
        return Registration(self._directory.version, orders, moved)

    async def orders(self) -> OrdersTold:
        """Return operators' orders, and the replicas that drain for them."""
        drained = {pool: list(replicas) for pool, replicas in self._drained.items() if replicas}
        return OrdersTold(drained, self._orders.now.devices)

    async def order_replica(self, name: str, drained: bool) -> OrdersTold:
        """Drain a replica, or have it take requests again; raises as `drain`, and Unavailable."""
        up = self._directory.snapshot.pools
        everyone = {pool: [*up.get(pool, ()), *self._drained.get(pool, ())] for pool in self._pools}
        await self._orders.change(lambda orders: drain(orders, name, drained, everyone))
        for pool, handle in self._pools.items():
            if any(each.name == name for each in everyone[pool]):
                await self._list(pool, handle)
        if self._directory.update(time.monotonic()):
            self._tell()
        return await self.orders()

    async def order_device(self, name: str, wanted: DeviceOrder) -> OrdersTold:
        """Stop, start or cut off a device, which hears of it when it registers next; raises as `order`, and
        Unavailable."""
        hosted = _names(self._hosts)
        known = {*self._directory.snapshot.devices, *hosted, *self._orders.now.devices.stopped}
        await self._orders.change(lambda orders: order(orders, name, wanted, known, hosted))
        return await self.orders()

    async def lost(self, name: str, address: str) -> None:
        """Record that a device did not answer; it and others of its host are unlisted until they register again."""
        if self._directory.lost(name, address, time.monotonic()):
            self._tell()

    async def waiting(self, requests: Mapping[str, float]) -> None:
        """Record the requests without a replica, by pool; the router repeats this report."""
        self._waiting, self._waiting_until_s = requests, time.monotonic() + FORGET_S

    async def snapshot(self, after: int = -1, wait_s: float = 0.0) -> Snapshot:
        """Return the changes since version `after`, or everything if that is unknown; waits up to `wait_s` seconds for
        a change, until replicas were listed once, and for devices to register with a successor."""
        await self._listed.wait()
        now_s = asyncio.get_running_loop().time()
        if self._asked_s is None:
            self._asked_s = now_s
        if self._edge.inherited:
            await asyncio.sleep(self._asked_s + GATHER_S - now_s)
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
                asked = handle.broadcast("state", waiting / max(up, 1), self._orders.now.drained)
                states = await asked.results_async(return_exceptions=True)
        except TimeoutError:  # one of them hangs: Serve will see to that, and the rest are still there
            logger.warning("not every %s says how busy it is", pool)
            return
        except Exception as error:  # no replica is up yet, or the only one has just died
            logger.debug("cannot list %s: %r", pool, error)
            states = []
        found: list[EndpointInfo] = [each for state in states if isinstance(state, list) for each in state]
        drained = self._orders.now.drained
        gone = {each.name for each in self._drained.get(pool, ())} - {each.name for each in found}
        if gone and all(
            isinstance(state, list) for state in states
        ):  # the store may be away; the listing goes on
            self._forgetting = asyncio.create_task(self._orders.forget(gone))
        self._drained[pool] = [each for each in found if each.name in drained]
        listed = [each for each in found if each.name not in drained]
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
        if self._edge.owned:  # there is no successor
            await self._orders.clear()
        self._edge.stop()


async def _woken(pool: str, handle: DeploymentHandle) -> None:
    try:
        await handle.wake.remote()
    except Exception as error:
        logger.warning("%s does not wake: %r", pool, error)


def _names(hosts: Iterable[HostSettings]) -> list[str]:
    return [device.name for host in hosts for device in host.devices]
