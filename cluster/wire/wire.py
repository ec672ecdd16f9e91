"""The wire: frames between two processes over one TCP connection, both ways.

This module does framing, coalescing, backpressure and keep-alive. It begins after hello (`cluster.wire.handshake`).
Where both sides keep a resume buffer (`cluster.wire.resume_buffer`), the TCP connection may break: the wire is then
*away* until it has another. The subclass handles the frames (`cluster.wire.client`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tandem.cluster.link.state import LinkState
from tandem.cluster.link.tcp_info import measured
from tandem.cluster.link.timer import precise_timer
from tandem.cluster.wire.frames import (
    HEADER,
    VERSION,
    Ack,
    AnyFrame,
    Bye,
    Error,
    Frame,
    Ping,
    Pong,
    ProtocolError,
    decode,
    encode,
)
from tandem.cluster.wire.resume_buffer import ResumeBuffer
from tandem.engine.base import EngineError, EngineStopped

_BUFFER = 256 * 1024  # a frame larger than this is received into memory of its own, without a copy
_AWAY_BYTES = 1024 * 1024  # kept while away, beyond which writers wait


@dataclass(frozen=True, slots=True)
class WireSettings:
    """Limits of a connection. Times in seconds.

    max_frame: bytes of the largest frame taken from the other side.
    timeout_s: longest wait for a reply (of a stream: for its next part), and for a reader that stalls.
    hello_s: longest time to connect and say hello, and to close.
    silence_s: silence after which a connection is lost; both sides ping every second.
    resume_s: how long a broken connection waits for the other side to come back, at most the other side's; 0: not at
        all.
    max_kept: most bytes kept for the other side until it acknowledges them, which it does at least every 64 KiB; only
        with resume_s.
    """

    max_frame: int = 64 * 1024 * 1024
    timeout_s: float = 60.0
    hello_s: float = 5.0
    silence_s: float = 30.0
    resume_s: float = 0.0
    max_kept: int = 64 * 1024 * 1024


DEFAULTS = WireSettings()


class Wire(asyncio.BufferedProtocol, ABC):
    """One side of a connection.

    reached_s: time of the loop's clock since which it is attached; infinite while it is away.
    rtt_s: real round-trip time, the lower quartile of the last pings; 0 until it is known.
    closed: done when the connection is closed; `reason` then says why.
    on_away, on_return: called soon after the connection went away, and after it was resumed, in this order.
    """

    def __init__(self, settings: WireSettings, resume_buffer: ResumeBuffer | None = None) -> None:
        """`resume_buffer`: of a connection that may be resumed. To begin, `attach` a transport."""
        loop = asyncio.get_running_loop()
        self.settings = settings
        self.closed: asyncio.Future[None] = loop.create_future()
        self.rtt_s = 0.0
        self.reached_s = loop.time()
        self.reason = "the connection is closed"
        self.on_away: list[Callable[[], None]] = []
        self.on_return: list[Callable[[], None]] = []
        self._loop = loop
        self._resume_buffer = resume_buffer  # None: a break is the end
        self._final = False  # either side has closed for good
        self._transport: asyncio.Transport | None = None
        self._view = memoryview(bytearray(_BUFFER))
        self._end = 0  # of the received bytes in the view
        self._large: memoryview | None = None
        self._filled = 0
        self._out: list[bytearray] = []
        self._full = False  # the transport takes no more for now
        self._pause_bytes = settings.max_kept // 2  # kept, beyond which writers wait
        self._writable = asyncio.Event()
        self._writable.set()
        self._closing_s = self._away_s = self._heard_s = self._checked_s = self._stalled_s = loop.time()
        tick_s = min(1.0, settings.timeout_s / 4, settings.hello_s / 4, settings.silence_s / 8)
        self._tick_s = tick_s if resume_buffer is None else min(tick_s, max(0.05, resume_buffer.resume_s / 4))
        self._tick = loop.call_later(self._tick_s, self._check)
        self._pings = 0  # that were timed
        self._pinged_s: float | None = None  # when the one under way left
        self._pongs_s: deque[float] = deque(maxlen=9)
        self._asked: asyncio.Future[bool] | None = None  # whether the other side answers

    @abstractmethod
    def received(self, frame: AnyFrame, size_bytes: int) -> None:
        """Handle a frame; size_bytes: with its header. Raises ProtocolError."""

    @abstractmethod
    def parted(self) -> None:
        """Handle a break after which the connection may be resumed."""

    @abstractmethod
    def lost(self) -> None:
        """Handle the end of the connection."""

    @abstractmethod
    def check(self, now_s: float) -> None:
        """End waits that take too long; called about every second."""

    @property
    def link(self) -> LinkState | None:
        """Rate and loss towards the other side, as the kernel has measured them."""
        return measured(self._transport)

    # Sending

    def send(self, data: bytearray) -> None:
        """Queue an encoded frame. All frames of one round of the event loop leave in one write; while the connection
        is away, they are kept."""
        if self._resume_buffer is not None:
            self._keep(self._resume_buffer, data)
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _say(self, frame: Frame) -> None:
        """Send a frame that is not counted and may be lost."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(encode(frame))

    def _flush(self) -> None:
        out, self._out = self._out, []
        transport = self._transport
        if out and transport is not None and not self._final and not transport.is_closing():
            transport.write(b"".join(out) if len(out) > 1 else out[0])

    def _keep(self, resume_buffer: ResumeBuffer, data: bytearray) -> None:
        if not resume_buffer.keep(data):
            error = EngineStopped(f"more than {resume_buffer.limit_bytes} bytes are not acknowledged")
            self._loop.call_soon(self.fail, error)  # later: the sender is in the middle of an operation
        elif resume_buffer.kept_bytes > self._pause_bytes and self._writable.is_set():
            self._balance()

    async def writable(self) -> None:
        """Wait until the other side has taken enough of what was sent. A reader that stalls for longer
        than `timeout_s` loses the connection, which ends the wait too."""
        await self._writable.wait()

    def pause_writing(self) -> None:
        self._full = True
        self._balance()

    def resume_writing(self) -> None:
        self._full = False
        self._balance()

    def _balance(self) -> None:
        kept = 0 if self._resume_buffer is None else self._resume_buffer.kept_bytes
        if not self._full and kept <= self._pause_bytes:
            self._writable.set()
        elif self._writable.is_set():
            self._stalled_s = self._loop.time()
            self._writable.clear()

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
            if size > self.settings.max_frame:
                raise ProtocolError(f"a frame of {size} bytes exceeds {self.settings.max_frame}")
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
            self._abandon(str(frame.exception()))
        elif type(frame) is Ping:
            self._acknowledged(frame.received)
            self._say(Pong(0, frame.seq, self._tell()))
        elif type(frame) is Pong:
            self._acknowledged(frame.received)
            self._answered(True)
            if frame.seq == self._pings and self._pinged_s is not None:
                self._pongs_s.append(precise_timer().time() - self._pinged_s)
                self.rtt_s = sorted(self._pongs_s)[len(self._pongs_s) // 4]
                self._pinged_s = None
        elif self._resume_buffer is None:
            self.received(frame, HEADER.size + len(body))
        elif type(frame) is Ack:
            self._acknowledged(frame.received)
        elif type(frame) is Bye:
            self._abandon("the other side closed the connection")
        elif not self._final:
            if self._resume_buffer.take(HEADER.size + len(body)):
                self._say(Ack(0, 0, self._tell()))
            self.received(frame, HEADER.size + len(body))

    def _tell(self) -> int:
        return 0 if self._resume_buffer is None else self._resume_buffer.tell()

    def _acknowledged(self, received: int) -> None:
        if self._resume_buffer is not None:
            self._resume_buffer.acknowledged(received)
            self._balance()

    # Life

    @property
    def away(self) -> bool:
        """Whether the connection broke and may yet be resumed."""
        return self._transport is None and not self.closed.done()

    @property
    def quiet_s(self) -> float:
        """Seconds since something arrived; the other side pings every second."""
        return self._loop.time() - self._heard_s

    @property
    def ended(self) -> bool:
        """Whether the connection is closed, or about to be."""
        return self._final

    def attach(self, transport: asyncio.Transport) -> None:
        """Begin, or go on, over a transport that lives and whose reading is paused."""
        self._transport = transport
        self.reached_s = self._heard_s = self._stalled_s = self._loop.time()
        transport.set_protocol(self)
        transport.resume_reading()
        self.ping()

    def ping(self) -> None:
        """Send a sign of life; one at a time is also timed, however long its pong takes."""
        if self._pinged_s is None:
            self._pings += 1
            self._pinged_s = precise_timer().time()  # the loop's own may count in milliseconds
            self._say(Ping(0, self._pings, self._tell()))
        else:
            self._say(Ping(0, 0, self._tell()))

    async def answers(self, within_s: float) -> bool:
        """Whether the other side answers a ping in time; not while the connection is away."""
        if self._transport is None or self._final:
            return False
        if self._asked is None:
            self._asked = self._loop.create_future()
        asked = self._asked
        self._say(Ping(0, 0, self._tell()))
        await asyncio.wait((asked,), timeout=within_s)
        return asked.done() and asked.result()

    def _answered(self, does: bool) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.set_result(does)

    def _check(self) -> None:
        now_s = self._loop.time()
        settings, transport = self.settings, self._transport
        if now_s - self._checked_s > settings.silence_s / 2:
            self._heard_s = now_s  # this process itself was busy: give the other side another chance
        self._checked_s = now_s
        self._tick = self._loop.call_later(self._tick_s, self._check)
        if transport is None:
            assert self._resume_buffer is not None
            if now_s - self._away_s > self._resume_buffer.resume_s:
                self.give_up(f"it was not resumed within {self._resume_buffer.resume_s} s")
        elif self._final or transport.is_closing():
            if now_s - self._closing_s > settings.hello_s:
                transport.abort()  # the other side does not even take the good-bye
        elif now_s - self._heard_s > settings.silence_s:
            self._break(f"nothing heard for {settings.silence_s} s")
        elif not self._writable.is_set() and now_s - self._stalled_s > settings.timeout_s:
            if now_s - self._heard_s > settings.timeout_s / 2:
                self._break(f"nothing was taken for {settings.timeout_s} s")  # the link's fault
            else:
                self.fail(ProtocolError(f"the reader stalled for {settings.timeout_s} s"))
        else:
            self.ping()
        self.check(now_s)

    def _break(self, why: str) -> None:
        """Give up the TCP connection: fail, or be away if the connection may be resumed."""
        if self._resume_buffer is None:
            self.fail(ProtocolError(why))
        else:
            self.part(why)

    def part(self, why: str) -> None:
        """Let go of the transport and be away; only of a connection that may be resumed."""
        if self._transport is not None:
            self._transport.set_protocol(asyncio.Protocol())  # discard what still arrives
            self._transport.abort()
        self._transport = None
        self._answered(False)
        self._out.clear()
        self._end, self._large = 0, None  # the frame that was cut is sent again
        self._pinged_s = None
        self._full = False
        self._pause_bytes = min(_AWAY_BYTES, self.settings.max_kept // 2)
        self._balance()
        self.reason = why
        self._away_s, self.reached_s = self._loop.time(), float("inf")
        for callback in self.on_away:
            self._loop.call_soon(callback)
        self.parted()

    def resume(self, transport: asyncio.Transport, received: int) -> None:
        """Go on over another transport, of which the same holds as for `attach`. `received`: how many of our frames
        the other side has. Raises ProtocolError if that cannot be."""
        assert self._resume_buffer is not None
        self._resume_buffer.acknowledged(received)
        self._out.clear()  # the resume buffer has it
        self.reason = "the connection is closed"
        self._pause_bytes = self.settings.max_kept // 2
        self._balance()
        self.attach(transport)
        transport.write(self._resume_buffer.missing())
        for callback in self.on_return:
            self._loop.call_soon(callback)

    def give_up(self, why: str) -> None:
        """End the connection, which is away, as lost."""
        self.reason = f"the connection is lost: {self.reason}, and {why}"
        self._lose()

    def fail(self, error: EngineError) -> None:
        """Tell the other side why, and close."""
        if self._final or self.closed.done():
            return
        self.reason = str(error)
        if self._transport is None:
            self._lose()
        else:
            self._shut(Error.of(error))

    def _abandon(self, reason: str) -> None:
        """Close the transport after the other side's last frame."""
        assert self._transport is not None
        if not self._final:
            self.reason, self._final = reason, True
            self._closing_s = self._loop.time()
        self._transport.close()

    def _shut(self, word: Frame | None) -> None:
        """Say a last word and close. Where the word decides whether the other side waits for a return, it is that
        side who closes, having heard it: closing while more comes in could take the word back."""
        transport = self._transport
        assert transport is not None
        if word is not None:
            self._out.append(encode(word))
        self._flush()
        self._final = True
        self._closing_s = self._loop.time()
        if self._resume_buffer is None and not transport.is_closing():
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None or not self._transport.is_closing():
            return  # it is the one before
        self._transport = None
        why = "the other side closed it" if exc is None else str(exc)
        if self._resume_buffer is not None and not self._final:
            self.part(why)
            return
        if exc is not None and not self._final:
            self.reason = f"the connection is lost: {exc}"
        self._lose()

    def _lose(self) -> None:
        self._tick.cancel()
        self._resume_buffer, self._final = None, True
        self._answered(False)
        self._out.clear()
        self.closed.set_result(None)
        self._writable.set()
        self.lost()

    async def close(self) -> None:
        """Send the queue and close; returns when the connection is closed."""
        if not self._final:
            if self._transport is None:
                self.reason = "the connection is closed"
                self._lose()
            else:
                self._shut(None if self._resume_buffer is None else Bye(0, 0))
        await asyncio.shield(self.closed)  # ends: `_check` aborts a connection that does not close
