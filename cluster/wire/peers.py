"""Connections to the processes that this one drives: one to each, shared by all engines and sessions."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial

from tandem.cluster.link.link import Link
from tandem.cluster.wire.client import Connection, RemoteEngine, connect
from tandem.cluster.wire.wire import DEFAULTS, WireSettings


class Peers:
    """Connections by address, dialled when first needed and again after they were lost; lost ones are forgotten."""

    def __init__(
        self,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        settings: WireSettings = DEFAULTS,
    ) -> None:
        self._token, self._tls, self._settings = token, tls, settings
        self._dialling: dict[str, asyncio.Task[Connection]] = {}

    async def connection(self, address: str) -> Connection:
        """Return the connection to "host:port". Raises as `connect`."""
        if (dialling := self._dialling.get(address)) is None:
            dial = connect(address, token=self._token, tls=self._tls, settings=self._settings)
            dialling = self._dialling[address] = asyncio.get_running_loop().create_task(dial)
            dialling.add_done_callback(partial(self._dialled, address))
        return await asyncio.shield(dialling)  # others may wait for it too

    def _dialled(self, address: str, dialling: asyncio.Task[Connection]) -> None:
        if dialling.cancelled() or dialling.exception() is not None:
            self._forget(address, dialling)
        else:
            dialling.result().closed.add_done_callback(lambda _: self._forget(address, dialling))

    def _forget(self, address: str, dialling: asyncio.Task[Connection]) -> None:
        if self._dialling.get(address) is dialling:
            del self._dialling[address]

    async def engine(self, address: str, name: str, link: Link | None = None) -> RemoteEngine:
        """Return the engine called `name` at an address. Raises as `connect`, and UnknownEngine."""
        return await (await self.connection(address)).find(name, link)

    async def close(self) -> None:
        """Close every connection."""
        dialled, self._dialling = self._dialling, {}
        for connection in await asyncio.gather(*dialled.values(), return_exceptions=True):
            if isinstance(connection, Connection):
                await connection.close()
