"""The wire: frames between two processes over one TCP connection, both ways.

Here a byte stream becomes frames and frames become writes: framing, hello and shared token, coalescing,
backpressure, signs of life. What the frames are about is the subclass's business (`cluster.client`).
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from cluster.frames import (
    HEADER,
    VERSION,
    AnyFrame,
    Error,
    Hello,
    Ping,
    Pong,
    ProtocolError,
    Unauthorized,
    Welcome,
    decode,
    encode,
)
from cluster.timer import precise_timer
from engine.base import EngineError, EngineInfo

_BUFFER = 256 * 1024  # a frame larger than this is received into memory of its own, without a copy
_HELLO_LIMIT = 1024 * 1024  # bytes of the largest frame before hello


@dataclass(frozen=True, slots=True)
class WireSettings:
    """Limits of a connection. Times in seconds.

    max_frame: bytes of the largest frame taken from the other side.
    timeout_s: longest wait for a reply (of a stream: for its next part), and for a reader that stalls.
    hello_s: longest time to connect and say hello, and to close.
    silence_s: a connection on which nothing arrives for so long is lost; both sides ping every second.
    """

    max_frame: int = 64 * 1024 * 1024
    timeout_s: float = 60.0
    hello_s: float = 5.0
    silence_s: float = 30.0


DEFAULTS = WireSettings()


class Wire(asyncio.BufferedProtocol, ABC):
    """One side of a connection.

    peer_engines: the engines that the other side serves, known once `ready` is done.
    made: done when there is a transport, with TLS after its handshake.
    ready: done after hello; on the side that dialled it may fail with Unauthorized or another EngineError.
    rtt_s: real round-trip time, the lower quartile of the last pings; 0 until it is known.
    closed: done when the connection is no more; `reason` then says why.
    """

    def __init__(
        self, infos: Mapping[str, EngineInfo], token: str | None, settings: WireSettings, dialled: bool
    ) -> None:
        """`infos`: the engines this side serves; `dialled`: this side was dialled and checks the token."""
        loop = asyncio.get_running_loop()
        self.settings = settings
        self.peer_engines: dict[str, EngineInfo] = {}
        self.made: asyncio.Future[None] = loop.create_future()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.rtt_s = 0.0
        self.reason = "the connection is closed"
        self._infos, self._token, self._dialled = dict(infos), token or "", dialled
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._view = memoryview(bytearray(_BUFFER))
        self._end = 0  # of the received bytes in the view
        self._large: memoryview | None = None
        self._filled = 0
        self._out: list[bytearray] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._closing_s = self._made_s = self._heard_s = self._checked_s = self._stalled_s = loop.time()
        self._tick_s = min(1.0, settings.timeout_s / 4, settings.hello_s / 4, settings.silence_s / 8)
        self._tick: asyncio.TimerHandle | None = None
        self._pings = 0  # that were timed
        self._pinged_s: float | None = None  # when the one under way left
        self._pongs_s: deque[float] = deque(maxlen=9)

    @abstractmethod
    def received(self, frame: AnyFrame, size_bytes: int) -> None:
        """A frame came in after hello; size with its header. May raise ProtocolError."""

    @abstractmethod
    def lost(self) -> None:
        """The connection is gone."""

    @abstractmethod
    def check(self, now_s: float) -> None:
        """Called about every second, to find what waits too long."""

    # Sending

    def send(self, data: bytearray) -> None:
        """Queue an encoded frame; what one round of the event loop queues leaves in one write."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(out) if len(out) > 1 else out[0])

    async def writable(self) -> None:
        """Wait until the other side has taken enough of what was sent. A reader that stalls for longer
        than `timeout_s` loses the connection, which ends the wait too."""
        await self._writable.wait()

    def pause_writing(self) -> None:
        self._stalled_s = self._loop.time()
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # Receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :] if self._large is None else self._large[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_s = self._loop.time()
        try:
            if self._large is None:
                self._end += nbytes
                self._parse()
            else:
                self._filled += nbytes
                if self._filled == len(self._large):
                    body, self._large = self._large, None
                    self._receive(body)
        except EngineError as error:
            self.fail(error)

    def _parse(self) -> None:
        start, end, view = 0, self._end, self._view
        while end - start >= HEADER.size:
            size, version = HEADER.unpack_from(view, start)
            if version != VERSION:
                raise ProtocolError(f"frame format version {version} is not {VERSION}")
            limit = self.settings.max_frame if self.ready.done() else _HELLO_LIMIT
            if size > limit:
                raise ProtocolError(f"a frame of {size} bytes exceeds {limit}")
            body = start + HEADER.size
            if end - body < size:
                if HEADER.size + size > len(view):
                    self._large, self._filled = memoryview(bytearray(size)), end - body
                    self._large[: self._filled] = view[body:end]
                    start = end
                break
            start = body + size
            self._receive(bytes(view[body:start]))
        self._end = end - start
        if start:
            view[: self._end] = view[start:end]

    def _receive(self, body: bytes | memoryview) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        frame = decode(body)
        if type(frame) is Error and frame.seq == 0:
            self._abandon(frame.exception())
        elif not self.ready.done():
            self._hello(frame)
        elif type(frame) is Ping:
            self.send(encode(Pong(0, frame.seq)))
        elif type(frame) is Pong:
            if frame.seq == self._pings and self._pinged_s is not None:
                self._pongs_s.append(precise_timer().time() - self._pinged_s)
                self.rtt_s = sorted(self._pongs_s)[len(self._pongs_s) // 4]
                self._pinged_s = None
        else:
            self.received(frame, HEADER.size + len(body))

    # Life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.made.set_result(None)
        if (tcp := transport.get_extra_info("socket")) is not None:
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tick = self._loop.call_later(self._tick_s, self._check)
        if not self._dialled:
            self.send(encode(Hello(0, 0, "", self._token, self._infos)))

    def _hello(self, frame: AnyFrame) -> None:
        if self._dialled and isinstance(frame, Hello):
            if not hmac.compare_digest(frame.token.encode(), self._token.encode()):
                raise Unauthorized("the shared token is not the right one")
            self.send(encode(Welcome(0, 0, self._infos)))
        elif self._dialled or not isinstance(frame, Welcome):
            raise ProtocolError(f"a {type(frame).__name__} frame came before hello")
        self.peer_engines = frame.engines
        self.ready.set_result(None)
        self._ping()

    def _ping(self) -> None:
        """A sign of life; one at a time is also timed, however long its pong takes."""
        if self._pinged_s is None:
            self._pings += 1
            self._pinged_s = precise_timer().time()  # the loop's own may count in milliseconds
            self.send(encode(Ping(0, self._pings)))
        else:
            self.send(encode(Ping(0, 0)))

    def _check(self) -> None:
        now_s = self._loop.time()
        settings, transport = self.settings, self._transport
        assert transport is not None
        if now_s - self._checked_s > settings.silence_s / 2:
            self._heard_s = now_s  # this process itself was busy: give the other side another chance
        self._checked_s = now_s
        self._tick = self._loop.call_later(self._tick_s, self._check)
        if transport.is_closing():
            if now_s - self._closing_s > settings.hello_s:
                transport.abort()  # the other side does not even take the good-bye
        elif not self.ready.done() and now_s - self._made_s > settings.hello_s:
            self.fail(ProtocolError(f"no hello within {settings.hello_s} s"))
        elif now_s - self._heard_s > settings.silence_s:
            self.fail(ProtocolError(f"nothing heard for {settings.silence_s} s"))
        elif not self._writable.is_set() and now_s - self._stalled_s > settings.timeout_s:
            self.fail(ProtocolError(f"the reader stalled for {settings.timeout_s} s"))
        elif self.ready.done():
            self._ping()
        self.check(now_s)

    def fail(self, error: EngineError) -> None:
        """Tell the other side why, and close."""
        if self._transport is not None and not self._transport.is_closing():
            self._out.append(encode(Error.of(error)))
            self._flush()
            self._abandon(error)

    def _abandon(self, error: EngineError) -> None:
        self.reason = str(error)
        if not self.ready.done() and not self._dialled:
            self.ready.set_exception(error)
        self._shut()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._tick is not None:
            self._tick.cancel()
        if exc is not None:
            self.reason = f"the connection is lost: {exc}"
        if not self.ready.done():
            self._abandon(ProtocolError("the other side closed the connection before hello"))
        self.closed.set_result(None)
        self._writable.set()
        self.lost()

    def _shut(self) -> None:
        assert self._transport is not None
        self._closing_s = self._loop.time()
        self._transport.close()

    async def close(self) -> None:
        """Send what is queued and close; returns when the connection is no more."""
        if self._transport is None:
            return
        if not self._transport.is_closing():
            self._flush()
            self._shut()
        await asyncio.shield(self.closed)  # ends: `_check` aborts a connection that does not close
