"""TCP in virtual time: streams in memory between processes, for the live wire above them.

Only what the wire uses is here: an accepted stream stands for its socket. A line, which a host is reached by, delays
what is sent, keeps it while it is stalled, and breaks its streams when it is cut.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from tandem.simulator.clock import VirtualLoop

HOST = "10.0.0.1"


class Line:
    """The line of one machine. delay_s: one way."""

    def __init__(self, loop: VirtualLoop, delay_s: float) -> None:
        self.delay_s = delay_s
        self._loop = loop
        self._ends: dict[Stream, None] = {}
        self._kept: list[Callable[[], object]] | None = None  # while it is stalled
        self.up = True

    def cut(self) -> None:
        """Break all streams; both ends notice. None is made until it is healed."""
        self.up = False
        self.reset()

    def reset(self) -> None:
        """Break all streams; others may be made at once."""
        self._kept = None if self._kept is None else []
        for end in list(self._ends):
            end.broken(ConnectionResetError("the line is cut"))

    def stall(self) -> None:
        """Keep what is sent from now on, without any error."""
        if self._kept is None:
            self._kept = []

    def heal(self) -> None:
        """Repair the line; what it kept arrives."""
        self.up, kept, self._kept = True, self._kept or [], None
        for deliver in kept:
            self.carry(deliver)

    def carry(self, deliver: Callable[[], object]) -> None:
        """Call when what is sent now arrives."""
        if self._kept is not None:
            self._kept.append(deliver)
        else:
            self._loop.call_later(self.delay_s, deliver)

    def join(self, end: Stream) -> None:
        """Have a stream's end break with the line."""
        self._ends[end] = None

    def leave(self, end: Stream) -> None:
        """Remove a stream's end, which is closed."""
        self._ends.pop(end, None)


class Listener:
    """A listening socket."""

    def __init__(self) -> None:
        self._waiting: deque[Stream] = deque()
        self._taker: asyncio.Future[None] | None = None

    def put(self, stream: Stream) -> None:
        """Have a stream accepted."""
        self._waiting.append(stream)
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    async def accept(self) -> Stream:
        """Return the next stream."""
        while not self._waiting:
            self._taker = asyncio.get_running_loop().create_future()
            await self._taker
        return self._waiting.popleft()


class Stream(asyncio.Transport):
    """One end of a stream: a transport, and until it has a protocol the accepted socket."""

    peer: Stream

    def __init__(self, loop: VirtualLoop, line: Line) -> None:
        super().__init__()
        self._loop, self._line = loop, line
        self._protocol: asyncio.BaseProtocol | None = None
        self._came = bytearray()
        self._last: list[Exception | None] = []  # why the other side has closed it, once it has
        self._paused = self._closing = self._ended = False
        line.join(self)

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Give it its first protocol."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._feed()

    # -- the transport ------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if not self._closing:
            sent, peer = bytes(data), self.peer
            self._line.carry(lambda: peer._arrived(sent))

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._loop.call_soon(self._feed)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing, peer = True, self.peer
            self._line.carry(lambda: peer._finished(None))
            self._loop.call_soon(self._end, None)

    def abort(self) -> None:
        if not self._closing:
            self._closing, peer = True, self.peer
            self._line.carry(lambda: peer._finished(ConnectionResetError("the other side has reset it")))
            self._loop.call_soon(self._end, None)

    def shutdown(self, how: int) -> None:
        """Close the accepted socket, which has no protocol yet."""
        self.abort()

    # -- what comes from the line -------------------------------------------------------------------------

    def broken(self, error: Exception | None) -> None:
        """End it, as the line is cut."""
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended = True
            self._line.leave(self)
            self._came.clear()
            if self._protocol is not None:
                self._protocol.connection_lost(error)

    def _arrived(self, data: bytes) -> None:
        if not self._closing:
            self._came += data
            self._feed()

    def _finished(self, error: Exception | None) -> None:
        """Note that the other side has closed it, which is noticed once all before is read."""
        self._last.append(error)
        self._feed()

    def _feed(self) -> None:
        while self._came and not self._paused and not self._closing and self._protocol is not None:
            protocol = self._protocol
            if isinstance(protocol, asyncio.BufferedProtocol):
                buffer = cast(memoryview, protocol.get_buffer(-1))
                size = min(len(buffer), len(self._came))
                buffer[:size] = self._came[:size]
                del self._came[:size]
                protocol.buffer_updated(size)
            else:
                self._came.clear()  # it is not read any more
        if self._last and not self._came and not self._paused and self._protocol is not None:
            self.broken(self._last[0])


class NetworkLoop(VirtualLoop):
    """A virtual loop with a network. lines: by the name that the machine's peer is dialled by; listeners: by port."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, Line] = {}
        self.listeners: dict[int, Listener] = {}

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: object
    ) -> tuple[Stream, Any]:
        line = self.lines[host]
        await asyncio.sleep(2 * line.delay_s)
        if not line.up or (listener := self.listeners.get(port)) is None:
            raise ConnectionRefusedError(f"nothing listens at {host}:{port}")
        near, far = Stream(self, line), Stream(self, line)
        near.peer, far.peer = far, near
        protocol = factory()
        near.begin(protocol)
        listener.put(far)
        return near, protocol

    async def sock_accept(self, sock: Any) -> tuple[Any, Any]:
        return await sock.accept(), (HOST, 0)

    async def connect_accepted_socket(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], sock: Any, **_: object
    ) -> tuple[Stream, Any]:
        protocol = protocol_factory()
        sock.begin(protocol)
        return sock, protocol
