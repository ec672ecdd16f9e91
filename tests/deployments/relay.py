"""A link that a test may cut: a TCP relay in the test's own event loop."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

NO_LINGER = struct.pack("ii", 1, 0)  # close with a reset instead of a good-bye


class Relay:
    """Carries bytes between whoever dials `address` and an endpoint, until it is cut.

    cuts: connections that were cut; swallowed: bytes that a silent link took and did not carry.
    carried: what each direction of each connection has carried, if it is to be `heard`.
    """

    def __init__(self, upstream: str, heard: bool = False) -> None:
        self.address = ""
        self.carried: list[bytearray] = []
        self._heard = heard
        self.cuts = self.swallowed = 0
        self._upstream = upstream
        self._silent = False
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Carry from now on."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())

    def reset(self) -> None:
        """Cut it so that both sides notice; nobody is let in again."""
        assert self._server is not None
        self._server.close()
        self.cuts += len(self._writers) // 2
        for writer in self._writers:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            writer.transport.abort()

    def silence(self) -> None:
        """Cut it so that neither side notices: the connections stay, and no byte arrives any more."""
        self._silent = True
        self.cuts += len(self._writers) // 2

    async def close(self) -> None:
        """Cut what is left, and return when nothing runs any more."""
        self.reset()
        while self._carrying:
            await asyncio.wait(self._carrying)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._upstream.rpartition(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            self._writers.add(sink)
            task = asyncio.get_running_loop().create_task(self._carry(source, sink))
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        carried = bytearray()
        self.carried.append(carried)
        with suppress(ConnectionError):
            while data := await source.read(65536):
                if self._silent:
                    self.swallowed += len(data)
                else:
                    if self._heard:
                        carried += data
                    sink.write(data)
                    await sink.drain()
        self._writers.discard(sink)
        sink.close()


@asynccontextmanager
async def relay_to(address: str, heard: bool = False) -> AsyncIterator[Relay]:
    """A link to the endpoint at an address ("host:port"). heard: somebody listens in."""
    relay = Relay(address, heard)
    await relay.listen()
    try:
        yield relay
    finally:
        await relay.close()
