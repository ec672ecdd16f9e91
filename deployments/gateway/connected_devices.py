"""Devices that have dialled in: one program per name, by its latest connection.

A program that dials anew takes its own place, whatever is still believed of its connection before. Another one with the
same key is refused as long as the first answers; otherwise the two would push each other out in turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.wire.client import Connection
from tandem.cluster.wire.frames import AlreadyConnected, Hello, Unauthorized
from tandem.deployments.access.caller_cache import Callers
from tandem.deployments.access.keys import digest
from tandem.deployments.gateway.device_session import ANSWER_S, Badge, Cloud, Guest
from tandem.deployments.gateway.messages import ENGINE
from tandem.engine.base import Engine, EngineError, EngineStopped

logger = logging.getLogger("ray.serve")


class Guests:
    """Connected devices.

    engines: of devices that serve one, by name.
    gone: called with the name of a device that has left.
    """

    def __init__(
        self, callers: Callers, cloud: Cloud, gone: Callable[[str], object], answer_s: float = ANSWER_S
    ) -> None:
        self.engines: dict[str, Engine] = {}
        self._callers, self._cloud, self._told_gone, self._answer_s = callers, cloud, gone, answer_s
        self._greeted: dict[Connection, Guest] = {}
        self._here: dict[str, Guest] = {}

    async def admit(self, hello: Hello) -> Badge:
        """Return the identity of a key's holder. Raises Unauthorized; AlreadyConnected if another program with that
        key is connected."""
        hashed = digest(hello.token)
        badge = Badge.of(await self._callers.of(hashed), hashed, hello.instance)
        here = self._here.get(badge.name)
        if here is not None and here.badge != badge:
            if await here.answers(self._answer_s):
                raise _taken(badge.name)
            here.leave(AlreadyConnected("it did not answer, and another program with its key has dialled in"))
            self._forget(here)
        return badge

    def greet(self, connection: Connection) -> Guest:
        """Return the session that serves a new connection."""
        guest = self._greeted[connection] = Guest(connection, self._callers, self._cloud)
        connection.closed.add_done_callback(lambda _: self._greeted.pop(connection))
        return guest

    def arrived(self, connection: Connection) -> None:
        """Hello is over."""
        if connection.closed.done():
            return
        guest = self._greeted[connection]
        if (before := self._here.get(guest.name)) is not None:
            if before.badge != guest.badge:  # the two were admitted at the same time
                guest.leave(_taken(guest.name))
                return
            before.leave(EngineStopped("the device has dialled in anew"))
        self._here[guest.name] = guest
        if ENGINE in connection.peer_engines:
            self.engines[guest.name] = connection.engine(ENGINE)
        connection.closed.add_done_callback(lambda _: self._forget(guest))
        logger.info("device %s has dialled in", guest.name)

    def _forget(self, guest: Guest) -> None:
        if self._here.get(guest.name) is guest:
            del self._here[guest.name]
            self.engines.pop(guest.name, None)
            self._told_gone(guest.name)
            logger.info("device %s is gone", guest.name)

    def records(self, address: str) -> list[DeviceRecord]:
        """The devices whose engines others reach at this address."""
        guests = [guest for guest in self._here.values() if guest.name in self.engines]
        return [record for guest in guests if (record := guest.present(address)) is not None]

    async def check(self) -> None:
        """Send devices away whose key was revoked, and end sessions that were left behind."""
        await asyncio.gather(*map(_check, self._here.values()))


async def _check(guest: Guest) -> None:
    try:
        await guest.tidy()
        await guest.caller()
    except Unauthorized as error:
        guest.leave(error)
    except EngineError:
        pass  # the router does not answer


def _taken(name: str) -> AlreadyConnected:
    return AlreadyConnected(
        f"another device is connected as {name!r} with this key; make one of its own: tandem keys device make NAME"
    )
