"""A device host: a process that hosts devices over engines that they share, and keeps them registered."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import ray

from tandem.cluster.devices.model_cache import HeldModel, MakeEngine, SharedModel
from tandem.cluster.devices.multi_model import SwitchingDevice
from tandem.cluster.devices.orders import NO_ORDERS, DeviceOrders, Registration
from tandem.cluster.devices.profile import DeviceProfile, load_profile
from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.link.link import Link, LinkProfile
from tandem.cluster.wire.address import joined, reachable
from tandem.cluster.wire.listener import serve_engines
from tandem.cluster.wire.server import EngineHandler
from tandem.engine.base import Engine

log = logging.getLogger(__name__)

Register = Callable[[list[DeviceRecord]], Awaitable[Registration | None]]


class HostedDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device.

    profile: a name of `cluster/configs`.
    link: emulated, between it and the cloud.
    profiles: by model, where it is not `profile`.
    serves: as in DeviceRecord.
    """

    name: str
    profile: str = "native"
    link: LinkProfile = LinkProfile()
    profiles: dict[str, str] = {}
    serves: tuple[str, ...] = ()

    def speed(self, model: str) -> DeviceProfile:
        """Return the device's profile with that model. Raises UnknownProfile."""
        return load_profile(self.profiles.get(model, self.profile))


class Host:
    """Serves devices on one wire endpoint, and registers them every `heartbeat_s` seconds.

    models: make the engines of those that each device holds, of which the first is loaded at the start. Where there are
        several, all are loaded and measured before.
    register: called with a record of every device that can be worked with; returns the orders for all, if there are
        any. What it raises is logged and tried again. Each call is also the sign of life, so that a restarted scheduler
        learns of the devices by itself.
    host, token, tls: of the endpoint; the token is shared, see `serve_engines`.
    """

    def __init__(
        self,
        models: Sequence[MakeEngine],
        devices: Sequence[HostedDevice],
        register: Register,
        *,
        host: str = "127.0.0.1",
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        heartbeat_s: float = 1.0,
    ) -> None:
        for name in {name for d in devices for name in (d.profile, *d.profiles.values())}:
            load_profile(name)  # there is one
        self._settings = {d.name: d for d in devices}
        self._devices: dict[str, SwitchingDevice] = {}
        self._links: dict[str, Link] = {}  # by engine
        self._orders = NO_ORDERS
        self._make, self._models = models, list[SharedModel]()
        self._register = register
        self.ready = asyncio.Event()
        self._host, self._token, self._tls = host, token, tls
        self._heartbeat_s = heartbeat_s
        self._leaving = False

    def leave(self) -> None:
        """Stop registering."""
        self._leaving = True

    async def idle(self) -> None:
        """Return when no device has a session."""
        while any(device.sessions for device in self._devices.values()):  # noqa: ASYNC110 (devices have no such event)
            await asyncio.sleep(0.05)

    async def run(self) -> None:
        """Serve and register until cancelled."""
        await self._load()
        engines = dict[str, Engine]()
        for name, device in self._devices.items():
            engines |= (its := device.engines(name))
            if not (link := self._settings[name].link).idle:
                self._links |= dict.fromkeys(its, Link(link))
        handler = partial(EngineHandler, engines, links=self._links)
        async with serve_engines(
            engines, joined(self._host, 0), auth=self._token, tls=self._tls, handler=handler
        ) as endpoint:
            address = reachable(endpoint.address)
            self.ready.set()
            while True:
                for engine in [model.engine for model in self._models if model.engine is not None]:
                    await engine.stats()  # raises if it has broken down: then the host is better dead
                if not self._leaving:
                    try:
                        async with asyncio.timeout(5.0):
                            reply = await self._register(self._records(address))
                        if reply is not None:
                            await self._obey(reply.orders)
                    except Exception as error:
                        log.warning("registering devices failed, trying again: %s", error)
                await asyncio.sleep(self._heartbeat_s)

    async def _load(self) -> None:
        """Load the models, and make the devices with the first one."""
        alone = len(self._make) == 1
        self._models = [await (SharedModel.loaded if alone else SharedModel.measured)(m) for m in self._make]
        for name, settings in self._settings.items():
            held = [HeldModel(model, settings.speed(model.info.model)) for model in self._models]
            self._devices[name] = SwitchingDevice(await held[0].load(), held)

    def _records(self, address: str) -> list[DeviceRecord]:
        """Return the records of devices that can be worked with."""
        return [self._record(name, address) for name in self._devices if not self._orders.unreachable(name)]

    def _record(self, name: str, address: str) -> DeviceRecord:
        settings, device = self._settings[name], self._devices[name]
        link = self._links.get(next(iter(device.engines(name))))
        record = device.record(name, address, (settings.link if link is None else link.profile).rtt_s)
        return msgspec.structs.replace(record, serves=settings.serves, link=link and link.state)

    async def _obey(self, orders: DeviceOrders) -> None:
        """Stop and start devices, and change their links, as ordered."""
        self._orders = orders
        for name, device in self._devices.items():
            order, configured, engines = orders.link(name), self._settings[name].link, device.engines(name)
            link = self._links.get(next(iter(engines)))
            if link is None and (order.cut or order.profile is not None):
                link = Link(configured)
                self._links |= dict.fromkeys(engines, link)
            if link is not None:
                link.change(order.profile or configured, order.cut)
            if name in orders.stopped:
                await device.close()
            else:
                device.reopen()


def _die(serving: asyncio.Task[None]) -> None:
    """End the process of a host that no longer serves, so that Ray starts it anew."""
    log.critical(
        "the device host no longer serves", exc_info=None if serving.cancelled() else serving.exception()
    )
    os._exit(1)


@ray.remote(max_restarts=-1, num_cpus=0)
class DeviceHost:
    """A Host as a Ray actor that Ray restarts when it dies; it then registers its devices anew.

    models: run in the actor's process.
    make_tls: what it listens with; likewise.
    prepare: prepares the actor's process before all else.
    The other arguments are Host's; `register` may be a Serve handle's `handle.method.remote`.
    """

    def __init__(
        self,
        models: Sequence[MakeEngine],
        devices: Sequence[HostedDevice],
        register: Register,
        make_tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        prepare: Callable[[], object] = lambda: None,
        **options: Any,
    ) -> None:
        # Ray restarts an actor by calling this alone, so this must start the work, not a method.
        prepare()
        self._host = Host(models, devices, register, tls=make_tls(), **options)
        self._running = asyncio.get_running_loop().create_task(self._host.run())
        self._running.add_done_callback(_die)

    async def ping(self) -> None:
        """Return when the engines are there."""
        await self._host.ready.wait()

    async def drain(self, within_s: float) -> None:
        """Stop registering, and end when no session is left, or after `within_s`."""
        self._host.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._host.idle()
        ray.kill(ray.get_runtime_context().current_actor)  # an exit of its own would be restarted
