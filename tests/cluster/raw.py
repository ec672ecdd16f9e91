"""The other side of a connection by hand, for saying what a well-behaved one never would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tandem.cluster.wire import frames
from tandem.cluster.wire.frames import HEADER, AnyFrame, Frame, decode, encode


class Raw:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *what: Frame | bytes) -> None:
        for item in what:
            self.writer.write(item if isinstance(item, bytes) else encode(item))

    async def receive(self) -> AnyFrame | None:
        """The next frame but for pings and pongs; None at the end of the connection."""
        while True:
            try:
                size, _ = HEADER.unpack(await self.reader.readexactly(HEADER.size))
                frame = decode(await self.reader.readexactly(size))
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
            if not isinstance(frame, frames.Ping | frames.Pong):
                return frame

    async def ended_with(self, code: str) -> bool:
        """Whether the other side closes the connection, with an error of this code as its last word."""
        last = None
        while (frame := await self.receive()) is not None:
            last = frame
        return isinstance(last, frames.Error) and (last.seq, last.code) == (0, code)


@asynccontextmanager
async def raw(address: str, token: str | None = "", resume_s: float = 0.0) -> AsyncIterator[Raw]:
    """A raw connection, after hello unless the token is None."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        peer = Raw(reader, writer)
        if token is not None:
            peer.send(frames.Hello(0, 0, "", token, {}, resume_s))
            assert isinstance(await peer.receive(), frames.Welcome)
        yield peer
    finally:
        writer.transport.abort()
