"""Streams of events that outlive their client's connection for a while: kept in this process, and sent again from any
event on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from tandem.app.api.http.errors import ApiError
from tandem.app.api.http.sending import PIECE, Sending

MOST_BYTES = 2**26
"""Size of all streams that are kept in a process, beyond which those without a client give way, the oldest first."""
_END = b"\n\n"
Produce = Callable[[Send], Coroutine[Any, Any, None]]
"""Makes a stream: sends its messages."""


class KeptStream:
    """A stream of events, numbered from 0: each has the field `id`, "{id}:{number}".

    A failure before the first event is kept as it is, without a number.

    id: of the answer.
    account: whose it is.
    numbered: whether events have begun.
    size: bytes of them.
    """

    def __init__(self, id: str, account: str) -> None:
        self.id, self.account = id, account
        self.numbered, self.over, self.size = False, False, 0
        self._start: Message | None = None
        self._events: list[bytes] = []
        self._news = asyncio.Event()

    async def take(self, message: Message) -> None:
        """Take in a message of the response, as its client would."""
        if message["type"] == "http.response.start":
            self._start, self.numbered = message, message["status"] == 200
        else:
            events = message.get("body", b"").split(_END)[:-1] if self.numbered else [message["body"]]
            for event in events:
                self._add(event)
            self.over = not message.get("more_body", False)
        self._tell()

    def end(self) -> None:
        """Take in that nothing follows, for whatever reason."""
        self.over = True
        self._tell()

    def has(self, number: int) -> bool:
        """Whether there has been an event of this number."""
        return 0 <= number < len(self._events)

    async def send(self, first: int, send: Send) -> None:
        """Send the stream from its event `first` on, to its end."""
        while self._start is None and not self.over:
            await self._news.wait()
        if self._start is None:
            return
        await send(self._start)
        while not self.over or first < len(self._events):
            piece = b""
            while first < len(self._events) and len(piece) < PIECE:
                piece += self._events[first]
                first += 1
            if piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            elif not self.over:
                await self._news.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _add(self, event: bytes) -> None:
        if self.numbered:
            event = b"id: %s:%d\n%s%s" % (self.id.encode(), len(self._events), event, _END)
        self._events.append(event)
        self.size += len(event)

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class KeptStreams:
    """The streams of a process; each is gone, and its answer ended, some time after its last client."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptStream] = {}  # the oldest first
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._clients: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self, stream: KeptStream, produce: Produce, keep_s: float) -> Response:
        """Have the stream made, and return the response that sends it. keep_s: time without a client."""
        self._kept[stream.id] = stream
        task = asyncio.create_task(produce(stream.take))
        self._tasks[stream.id] = task
        task.add_done_callback(lambda _: self._made(stream))
        return _Following(self, stream, 0, keep_s)

    def resume(self, account: str, id: str, after: int, keep_s: float) -> Response:
        """Return the response that sends a stream from behind its event `after`. Raises ApiError."""
        stream = self._find(account, id)
        if after != -1 and not stream.has(after):
            raise ApiError(400, f"stream {id!r} has had no event {after}", code="invalid_value")
        return _Following(self, stream, after + 1, keep_s)

    def end(self, account: str, id: str) -> None:
        """End a stream and its answer, and forget it. Raises ApiError."""
        self._forget(self._find(account, id).id)

    def _find(self, account: str, id: str) -> KeptStream:
        stream = self._kept.get(id)
        if stream is None or stream.account != account:
            message = f"there is no stream {id!r}, or not any more, or another replica of the API has it"
            raise ApiError(404, message, code="stream_not_found")
        return stream

    def joined(self, stream: KeptStream) -> None:
        """Note that a client follows a stream."""
        self._clients[stream.id] = self._clients.get(stream.id, 0) + 1
        if (timer := self._timers.pop(stream.id, None)) is not None:
            timer.cancel()

    def left(self, stream: KeptStream, keep_s: float) -> None:
        """Note that a client follows it no more. keep_s: time until it is forgotten, unless another one comes; one that
        has had no event yet is forgotten at once, as nobody knows its id."""
        self._clients[stream.id] -= 1
        if not self._clients[stream.id]:
            del self._clients[stream.id]
            if not stream.numbered:
                self._forget(stream.id)
            elif stream.id in self._kept:
                loop = asyncio.get_running_loop()
                self._timers[stream.id] = loop.call_later(keep_s, self._forget, stream.id)
        self._make_room()

    def _made(self, stream: KeptStream) -> None:
        stream.end()
        self._tasks.pop(stream.id, None)
        if not stream.numbered:  # it was refused
            self._forget(stream.id)
        self._make_room()

    def _make_room(self) -> None:
        size = sum(stream.size for stream in self._kept.values())
        for id in [id for id in self._kept if id not in self._clients]:
            if size <= MOST_BYTES:
                return
            size -= self._kept[id].size
            self._forget(id)

    def _forget(self, id: str) -> None:
        self._kept.pop(id, None)
        if (timer := self._timers.pop(id, None)) is not None:
            timer.cancel()
        if (task := self._tasks.get(id)) is not None:
            task.cancel()


class _Following(Response):
    """Sends a kept stream while its client is there."""

    def __init__(self, streams: KeptStreams, stream: KeptStream, first: int, keep_s: float) -> None:
        super().__init__()
        self._streams, self._stream, self._first, self._keep_s = streams, stream, first, keep_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def follow(send: Send) -> None:
            await self._stream.send(self._first, send)

        self._streams.joined(self._stream)
        try:
            await Sending(receive, send).run(follow, lambda: None)
        finally:
            self._streams.left(self._stream, self._keep_s)
