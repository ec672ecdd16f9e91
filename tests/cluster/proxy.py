"""A link of TCP that comes and goes, as a test plans it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

NO_LINGER = struct.pack("ii", 1, 0)  # close with a reset instead of a good-bye


class Cut(NamedTuple):
    """A connection ends after so many bytes, of both directions together. how: "end" (in order), "reset", or "silent"
    (it stays, and no byte arrives any more)."""

    after_bytes: int
    how: str = "end"


class Proxy:
    """Carries bytes between whoever dials `address` and an endpoint.

    plan: how each next connection ends; those after the last have no end.
    refusing: whoever dials is turned away.
    cuts: that happened; dials: that were taken or turned away; swallowed: bytes that a silent link took.
    """

    def __init__(self, upstream: str, plan: Iterable[Cut] = ()) -> None:
        self.address = ""
        self.refusing = False
        self.cuts = self.dials = self.swallowed = 0
        self._upstream = upstream
        self._plan = iter(plan)
        self._server: asyncio.Server | None = None
        self._lines: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Carry from now on."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())

    def cut(self, how: str) -> None:
        """Cut what is carried now."""
        for line in list(self._lines):
            line.cut(how)

    async def close(self) -> None:
        """Cut what is left, and return when nothing runs any more."""
        assert self._server is not None
        self._server.close()
        for line in list(self._lines):
            line.end("reset")
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dials += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.refusing:
            writer.transport.abort()
            return
        host, _, port = self._upstream.rpartition(":")
        try:
            there = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        line = _Line(self, next(self._plan, None), writer, there[1])
        self._lines.add(line)
        await asyncio.gather(line.carry(reader, there[1]), line.carry(there[0], writer))
        self._lines.discard(line)


class _Line:
    def __init__(self, proxy: Proxy, planned: Cut | None, *writers: asyncio.StreamWriter) -> None:
        self._proxy, self._writers = proxy, writers
        self._left = planned.after_bytes if planned else None
        self._how = planned.how if planned else "end"
        self._silent = False
        self._over = asyncio.Event()

    async def carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                if self._silent:
                    self._proxy.swallowed += len(data)
                    continue
                here = data if self._left is None else data[: self._left]
                sink.write(here)
                await sink.drain()
                if self._left is not None:
                    self._left -= len(here)
                    if not self._left:
                        self._left = None
                        self.cut(self._how)
        if self._silent:
            await self._over.wait()  # nor does it say that one side has gone
        self.end("end")

    def cut(self, how: str) -> None:
        self._proxy.cuts += 1
        if how == "silent":
            self._silent = True
        else:
            self.end(how)

    def end(self, how: str) -> None:
        self._over.set()
        for writer in self._writers:
            if how == "reset":
                tcp = writer.get_extra_info("socket")
                if tcp is not None and tcp.fileno() >= 0:
                    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                writer.transport.abort()
            else:
                writer.close()


@asynccontextmanager
async def proxy_to(address: str, plan: Iterable[Cut] = ()) -> AsyncIterator[Proxy]:
    """A link to the endpoint at an address ("host:port")."""
    proxy = Proxy(address, plan)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()
