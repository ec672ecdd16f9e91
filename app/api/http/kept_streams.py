"""Streams of events that outlive their client's connection for a while, and, where copies of them are kept, the replica
of the API that makes them: sent again from any event on."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from tandem.app.api.http.backend import StreamStore
from tandem.app.api.http.errors import ApiError
from tandem.app.api.http.sending import PIECE, Sending
from tandem.deployments.access.kept.streams import Outcome, Said, StreamCopy, StreamNews, StreamRequest
from tandem.deployments.request.assignment import Unavailable

logger = logging.getLogger("ray.serve")

MOST_BYTES = 2**26
"""Size of all streams that are kept in a process, beyond which those without a client give way, the oldest first."""
EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or nginx would collect the events
]
KEEP_ALIVE_S = 1.0
"""Seconds after which a client that gets no event gets a comment: it can tell a slow answer from a dead stream."""
_KEEP_ALIVE = b": keep-alive\n"  # an empty line after it would be an event to OpenAI's client once ids came
_END = b"\n\n"
_START: Message = {"type": "http.response.start", "status": 200, "headers": EVENT_STREAM}
Produce = Callable[[Send], Coroutine[Any, Any, None]]
"""Makes a stream: sends its messages."""


class KeptStream:
    """A stream of events, numbered from 0: each has the field `id`, "{id}:{number}".

    A failure before the first event is kept as it is, without a number; a client that has got a comment by then gets it
    as an event. A client gets an event when a copy of it is kept, or cannot be.

    id: of the answer.
    account: whose it is.
    said: by choice, the tokens that are in its events; the stream's maker adds them with each message.
    numbered: whether events have begun.
    size: bytes of them.
    """

    def __init__(
        self, id: str, account: str, request: StreamRequest | None = None, said: Sequence[Said] = ()
    ) -> None:
        self.id, self.account, self.said = id, account, said
        self.numbered, self.over, self.size = False, False, 0
        self.changed: Callable[[KeptStream], object] = KeptStream.release
        self._request = request
        self._start: Message | None = None
        self._events: list[bytes] = []
        self._released = 0  # events that a client may have
        self._ended = False  # likewise the end
        self._copied = 0  # events of which there are copies
        self._said_copied = [0] * len(said)  # likewise tokens
        self._news = asyncio.Event()

    @classmethod
    def of(cls, id: str, account: str, copy: StreamCopy) -> KeptStream:
        """Return the stream that goes on behind its copy."""
        said = [each.since(0) for each in copy.said]
        stream = cls(id, account, copy.request, said)
        stream._start = _START
        stream.numbered = True
        stream._events = list(copy.events)
        stream.size = sum(map(len, stream._events))
        stream.over = copy.over
        stream._copied, stream._said_copied = len(stream._events), [len(each.ids) for each in said]
        stream.release()
        return stream

    async def take(self, message: Message) -> None:
        """Take in a message of the response, as its client would."""
        if message["type"] == "http.response.start":
            if self.numbered:  # it goes on
                return
            self._start, self.numbered = message, message["status"] == 200
        else:
            events = message.get("body", b"").split(_END)[:-1] if self.numbered else [message["body"]]
            for event in events:
                self._add(event)
            self.over = not message.get("more_body", False)
        self.changed(self)

    def end(self) -> None:
        """Take in that nothing follows, for whatever reason."""
        if not self.over:
            self.over = True
            self.changed(self)

    def has(self, number: int) -> bool:
        """Whether there has been an event of this number."""
        return 0 <= number < len(self._events)

    def news(self) -> StreamNews | None:
        """Return what there are no copies of; None if nothing of this stream is to be copied."""
        if self._request is None or not self.numbered:
            return None
        first = self._copied
        return StreamNews(
            self.account,
            self.id,
            first,
            self._events[first:],
            [each.since(at) for each, at in zip(self.said, self._said_copied, strict=True)],
            self.over,
            None if first else self._request,
        )

    def copied(self, news: StreamNews) -> None:
        """Note that there are copies of this news."""
        self._copied = news.first + len(news.events)
        before = self._said_copied if news.first else [0] * len(news.said)
        self._said_copied = [at + len(each.ids) for at, each in zip(before, news.said, strict=True)]
        self._release(self._copied, news.over)

    def forgotten(self) -> None:
        """Note that there are no copies any more."""
        self._copied, self._said_copied = 0, [0] * len(self._said_copied)

    def release(self) -> None:
        """Let clients have all that has come."""
        self._release(len(self._events), self.over)

    def cut(self) -> None:
        """Let clients have no more than they may have now: the rest is elsewhere."""
        self._release(0, ended=True)

    def _release(self, events: int, ended: bool) -> None:
        self._released, self._ended = max(self._released, events), self._ended or ended
        self._news.set()
        self._news = asyncio.Event()

    async def send(self, first: int, send: Send) -> None:
        """Send the stream from its event `first` on, to its end, and comments while there are no events."""
        early = False  # whether the client was told of a stream before there was one
        while self._start is None and not self._ended:
            if not await self._has_news():
                if not early:
                    early = True
                    await send(_START)
                await _send_piece(send, _KEEP_ALIVE)
        if not early:
            if self._start is None:
                return
            await send(self._start)
        while not self._ended or first < self._released:
            piece = b""
            while first < self._released and len(piece) < PIECE:
                piece += self._events[first]
                first += 1
            if piece:
                await _send_piece(send, b"data: " + piece + _END if early and not self.numbered else piece)
            elif not self._ended and not await self._has_news():
                await _send_piece(send, _KEEP_ALIVE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _has_news(self) -> bool:
        """Return whether there is something new within KEEP_ALIVE_S."""
        with suppress(TimeoutError):
            async with asyncio.timeout(KEEP_ALIVE_S):
                await self._news.wait()
                return True
        return False

    def _add(self, event: bytes) -> None:
        if self.numbered:
            event = b"id: %s:%d\n%s%s" % (self.id.encode(), len(self._events), event, _END)
        self._events.append(event)
        self.size += len(event)


class KeptStreams:
    """The streams of a process; each is gone, and its answer ended, some time after its last client.

    store: keeps copies, for all replicas of the API; None: there are none.
    """

    def __init__(self, store: StreamStore | None = None) -> None:
        self._store, self._owner = store, secrets.token_hex(8)
        self._copier = None if store is None else _Copier(store, self._owner, self._moved)
        self._kept: dict[str, KeptStream] = {}  # the oldest first
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._clients: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self, stream: KeptStream, produce: Produce, keep_s: float, after: int = -1) -> Response:
        """Have the stream made, and return the response that sends it.

        keep_s: time without a client.
        after: the last event that the client has.
        """
        if self._copier is not None:
            stream.changed = self._copier.changed
        self._kept[stream.id] = stream
        task = asyncio.create_task(produce(stream.take))
        self._tasks[stream.id] = task
        task.add_done_callback(lambda _: self._made(stream))
        return self.follow(stream, after, keep_s)

    async def find(self, account: str, id: str) -> KeptStream | StreamCopy:
        """Return a stream of this process, or the copy of another one's, whose it is no more. Raises ApiError."""
        stream = self._kept.get(id)
        if stream is not None and stream.account == account:
            return stream
        copy: StreamCopy | None = None
        if self._store is not None:
            try:
                copy = await self._store.claim(account, id, self._owner)
            except Unavailable as error:
                raise ApiError(503, f"stream {id!r}: {error}", code="unavailable") from None
        if copy is None:
            raise _no_stream(id)
        return copy

    def follow(self, stream: KeptStream, after: int, keep_s: float) -> Response:
        """Return the response that sends a stream from behind its event `after`. Raises ApiError."""
        if after != -1 and not stream.has(after):
            raise ApiError(400, f"stream {stream.id!r} has had no event {after}", code="invalid_value")
        return _Following(self, stream, after + 1, keep_s)

    async def end(self, account: str, id: str) -> None:
        """End a stream and its answer, as its client wants it. Raises ApiError."""
        found = await self.find(account, id)
        if isinstance(found, KeptStream):
            self._forget(found)
        elif self._copier is not None:
            self._copier.forget(account, id)

    def joined(self, stream: KeptStream) -> None:
        """Note that a client follows a stream."""
        self._clients[stream.id] = self._clients.get(stream.id, 0) + 1
        if (timer := self._timers.pop(stream.id, None)) is not None:
            timer.cancel()

    def left(self, stream: KeptStream, keep_s: float) -> None:
        """Note that a client follows it no more. keep_s: time until it is forgotten, unless another one comes; one that
        has had no event yet is forgotten at once, as no client knows its id."""
        self._clients[stream.id] -= 1
        if not self._clients[stream.id]:
            del self._clients[stream.id]
            if not stream.numbered:
                self._forget(stream)
            elif stream.id in self._kept:
                loop = asyncio.get_running_loop()
                self._timers[stream.id] = loop.call_later(keep_s, self._forget, stream)
        self._make_room()

    def _made(self, stream: KeptStream) -> None:
        stream.end()
        if self._kept.get(stream.id) is stream:
            self._tasks.pop(stream.id, None)
            if not stream.numbered:  # it was refused
                self._forget(stream)
        self._make_room()

    def _make_room(self) -> None:
        size = sum(stream.size for stream in self._kept.values())
        for id in [id for id in self._kept if id not in self._clients]:
            if size <= MOST_BYTES:
                return
            size -= self._kept[id].size
            self._drop(id)  # a copy of it may still be found

    def _moved(self, stream: KeptStream) -> None:
        """End here what goes on at another replica; a client that is still here may follow it there."""
        stream.cut()
        if self._kept.get(stream.id) is stream:
            self._drop(stream.id)

    def _forget(self, stream: KeptStream) -> None:
        """Forget a stream here, and its copy."""
        if self._kept.get(stream.id) is stream:
            self._drop(stream.id)
            if self._copier is not None:
                self._copier.forget(stream.account, stream.id)

    def _drop(self, id: str) -> None:
        self._kept.pop(id).changed = KeptStream.release  # nothing of it is copied any more
        if (timer := self._timers.pop(id, None)) is not None:
            timer.cancel()
        if (task := self._tasks.pop(id, None)) is not None:
            task.cancel()


class _Copier:
    """Has copies kept of streams: news of all of them in one call, one call after the other.

    moved: told of a stream that another replica has.
    """

    def __init__(self, store: StreamStore, owner: str, moved: Callable[[KeptStream], object]) -> None:
        self._store, self._owner, self._moved = store, owner, moved
        self._changed: dict[str, KeptStream] = {}
        self._gone: list[tuple[str, str]] = []
        self._task: asyncio.Task[None] | None = None
        self._reached = True  # whether the store has answered the last call

    def changed(self, stream: KeptStream) -> None:
        """Take in that a stream has news."""
        if not (self._reached and stream.numbered):
            stream.release()
        self._changed[stream.id] = stream
        self._go()

    def forget(self, account: str, id: str) -> None:
        """Have a copy forgotten soon."""
        self._changed.pop(id, None)
        self._gone.append((account, id))
        self._go()

    def _go(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._changed or self._gone:
                await self._send_news()
        finally:
            self._task = None
            for stream in self._changed.values():  # there are some after a failure only
                stream.release()

    async def _send_news(self) -> None:
        if self._gone:
            gone, self._gone = self._gone, []
            with suppress(Unavailable):  # it forgets them after some time, too
                await self._store.forget(gone)
        changed, self._changed = list(self._changed.values()), {}
        told = [(stream, news) for stream in changed if (news := stream.news()) is not None]
        if not told:
            return
        try:
            outcomes = await self._store.take(self._owner, [news for _, news in told])
        except BaseException as error:
            for stream, _ in told:
                stream.release()
            if not isinstance(error, Unavailable):
                raise
            if self._reached:
                logger.warning("resumable streams go on without copies: %s", error)
            self._reached = False
            return
        self._reached = True
        for (stream, news), outcome in zip(told, outcomes, strict=True):
            self._take(stream, news, outcome)

    def _take(self, stream: KeptStream, news: StreamNews, outcome: Outcome) -> None:
        if outcome is Outcome.MOVED:
            self._moved(stream)
        elif outcome is Outcome.UNKNOWN:
            stream.forgotten()
            self._changed[stream.id] = stream
        else:
            stream.copied(news)


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


async def _send_piece(send: Send, piece: bytes) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": True})


def _no_stream(id: str) -> ApiError:
    return ApiError(404, f"there is no stream {id!r}, or not any more", code="stream_not_found")
