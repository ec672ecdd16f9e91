"""Devices that have dialled in: one program per name, by its latest connection.

A program that dials anew takes its own place, whatever is still believed of its connection before. Another one with the
same key is refused as long as the first answers; otherwise the two would push each other out in turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.wire.client import Connection
from tandem.cluster.wire.frames import AlreadyConnected, Hello, Unauthorized
from tandem.deployments.access.client.caller_cache import Callers
from tandem.deployments.access.keys import digest
from tandem.deployments.gateway.device_session import ANSWER_S, Cloud, ConnectedDevice, DeviceIdentity
from tandem.deployments.gateway.messages import ENGINE
from tandem.engine.base import Engine, EngineError, EngineStopped

logger = logging.getLogger("ray.serve")


class ConnectedDevices:
    """Connected devices.

    engines: of devices that serve one and are not stopped, by name.
    gone: called with the name of a device that has left.
    """

    def __init__(
        self, callers: Callers, cloud: Cloud, gone: Callable[[str], object], answer_s: float = ANSWER_S
    ) -> None:
        self.engines: dict[str, Engine] = {}
        self._callers, self._cloud, self._told_gone, self._answer_s = callers, cloud, gone, answer_s
        self._greeted: dict[Connection, ConnectedDevice] = {}
        self._here: dict[str, ConnectedDevice] = {}
        self._serving: dict[str, Engine] = {}  # also of devices that are stopped
        self._stopped: frozenset[str] = frozenset()

    async def admit(self, hello: Hello) -> DeviceIdentity:
        """Return the identity of a key's holder. Raises Unauthorized; AlreadyConnected if another program with that
        key is connected."""
        hashed = digest(hello.token)
        identity = DeviceIdentity.of(await self._callers.of(hashed), hashed, hello.instance)
        here = self._here.get(identity.name)
        if here is not None and here.identity != identity:
            if await here.answers(self._answer_s):
                raise _taken(identity.name)
            here.leave(AlreadyConnected("it did not answer, and another program with its key has dialled in"))
            self._forget(here)
        return identity

    def greet(self, connection: Connection) -> ConnectedDevice:
        """Return the session that serves a new connection."""
        device = self._greeted[connection] = ConnectedDevice(connection, self._callers, self._cloud)
        connection.closed.add_done_callback(lambda _: self._greeted.pop(connection))
        return device

    def arrived(self, connection: Connection) -> None:
        """Take in a device whose handshake is over, in place of its connection before."""
        if connection.closed.done():
            return
        device = self._greeted[connection]
        if (before := self._here.get(device.name)) is not None:
            if before.identity != device.identity:  # the two were admitted at the same time
                device.leave(_taken(device.name))
                return
            before.leave(EngineStopped("the device has dialled in anew"))
        self._here[device.name] = device
        if ENGINE in connection.peer_engines:
            self._serving[device.name] = connection.engine(ENGINE)
            self._offer()
        connection.closed.add_done_callback(lambda _: self._forget(device))
        logger.info("device %s has dialled in", device.name)

    def _forget(self, device: ConnectedDevice) -> None:
        if self._here.get(device.name) is device:
            del self._here[device.name]
            self._serving.pop(device.name, None)
            self._offer()
            self._told_gone(device.name)
            logger.info("device %s is gone", device.name)

    def records(self, address: str) -> list[DeviceRecord]:
        """The devices whose engines others reach at this address."""
        devices = [device for device in self._here.values() if device.name in self.engines]
        return [record for device in devices if (record := device.present(address)) is not None]

    def obey(self, stopped: frozenset[str]) -> None:
        """Give these devices no work, and all others some. What a device that is stopped works on goes on elsewhere,
        as its connection ends; it may dial in again, for requests of its own."""
        for name in stopped - self._stopped:
            if name in self.engines:
                self._here[name].leave(EngineStopped("an operator has stopped this device"))
        self._stopped = stopped
        self._offer()

    def moved(self, names: Iterable[str]) -> None:
        """Send devices away that have dialled another gateway since, or whose keys another program has shown there."""
        for name in names:
            if (device := self._here.get(name)) is not None:
                device.leave(
                    AlreadyConnected("it, or another program with its key, has dialled another gateway")
                )
                self._forget(device)

    def _offer(self) -> None:
        """Set the engines that others reach; their handlers share the mapping."""
        self.engines.clear()
        self.engines |= {n: engine for n, engine in self._serving.items() if n not in self._stopped}

    async def check(self) -> None:
        """Send devices away whose key was revoked, and end sessions that were left behind."""
        await asyncio.gather(*map(_check, self._here.values()))


async def _check(device: ConnectedDevice) -> None:
    try:
        await device.tidy()
        await device.caller()
    except Unauthorized as error:
        device.leave(error)
    except EngineError:
        pass  # the router does not answer


def _taken(name: str) -> AlreadyConnected:
    return AlreadyConnected(
        f"another device is connected as {name!r} with this key; make one of its own: tandem keys device make NAME"
    )
