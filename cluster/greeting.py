"""The first frame of a connection, on either side, from a transport that is then handed on."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from typing import cast

from tandem.cluster.frames import HEADER, VERSION, AnyFrame, ProtocolError, decode

_LIMIT = 1024 * 1024  # bytes of the largest frame before and of hello


class Greeting(asyncio.BufferedProtocol, ABC):
    """Reads one frame and not a byte more; reading is then paused, until another protocol has the transport."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._heard = False  # the frame, or that there will be none
        self._in_body = False
        self._view = memoryview(bytearray(HEADER.size))
        self._filled = 0

    @abstractmethod
    def came(self, frame: AnyFrame) -> None:
        """The frame is here."""

    @abstractmethod
    def failed(self, error: ProtocolError) -> None:
        """No frame will come, or one that is none."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if (tcp := transport.get_extra_info("socket")) is not None:
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._view) or self._heard:
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
            return decode(self._view)
        size, version = HEADER.unpack(self._view)
        if version != VERSION:
            raise ProtocolError(f"frame format version {version} is not {VERSION}")
        if size > _LIMIT:
            raise ProtocolError(f"a frame of {size} bytes exceeds {_LIMIT}")
        if not size:
            return decode(b"")  # it is none: raises
        self._in_body = True
        self._view, self._filled = memoryview(bytearray(size)), 0
        return None

    def _stop(self) -> None:
        self._heard = True
        self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._heard:
            self._heard = True
            self.failed(ProtocolError("the other side closed the connection before hello"))
