"""Reading the first frame of a connection, on either side, before its transport is handed on."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from typing import cast

from tandem.cluster.wire.frames import HEADER, VERSION, AnyFrame, ProtocolError, decode

_CHUNK = 4096  # bytes read at once


class Greeting(asyncio.BufferedProtocol, ABC):
    """Reads exactly one frame; reading is then paused, until another protocol has the transport.

    Keeps only received bytes, whatever the header announces.
    """

    transport: asyncio.Transport

    def __init__(self, limit_bytes: int) -> None:
        """limit_bytes: of the frame's body."""
        self._limit_bytes = limit_bytes
        self._heard = False  # the frame, or that there will be none
        self._in_body = False
        self._came, self._awaited = bytearray(), HEADER.size
        self._chunk = memoryview(b"")

    @abstractmethod
    def came(self, frame: AnyFrame) -> None:
        """Handle the frame."""

    @abstractmethod
    def failed(self, error: ProtocolError) -> None:
        """Handle a malformed frame, or that none will come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if (tcp := transport.get_extra_info("socket")) is not None:
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        self._chunk = memoryview(bytearray(min(_CHUNK, self._awaited - len(self._came))))
        return self._chunk

    def buffer_updated(self, nbytes: int) -> None:
        self._came += self._chunk[:nbytes]
        self._chunk = memoryview(b"")
        if len(self._came) < self._awaited or self._heard:
            return
        try:
            frame = self._read()
        except ProtocolError as error:
            self._stop()
            self.failed(error)
        else:
            if frame is not None:
                self._stop()
                self.came(frame)

    def _read(self) -> AnyFrame | None:
        if self._in_body:
            return decode(self._came)
        size, version = HEADER.unpack(self._came)
        if version != VERSION:
            raise ProtocolError(f"frame format version {version} is not {VERSION}")
        if size > self._limit_bytes:
            raise ProtocolError(f"a frame of {size} bytes exceeds {self._limit_bytes}")
        if not size:
            return decode(b"")  # it is none: raises
        self._in_body = True
        self._came, self._awaited = bytearray(), size
        return None

    def _stop(self) -> None:
        self._heard = True
        self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._heard:
            self.failed(ProtocolError("the other side closed the connection before hello"))
