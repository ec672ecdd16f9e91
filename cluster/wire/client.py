"""Engines of another process, driven over the wire like local ones."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence, Set
from typing import Protocol, TypeVar

from tandem.cluster.link.link import Link, Pipe
from tandem.cluster.wire import frames
from tandem.cluster.wire.dialer import Dialler
from tandem.cluster.wire.frames import (
    AnyFrame,
    Error,
    ProtocolError,
    RequestFrame,
    UnknownEngine,
    pack_bits,
    unpack_ids,
)
from tandem.cluster.wire.resume_buffer import ResumeBuffer
from tandem.cluster.wire.wire import DEFAULTS, Wire, WireSettings
from tandem.engine.base import (
    EngineError,
    EngineInfo,
    EngineStats,
    EngineStopped,
    Operation,
    R,
    Sampling,
    Tokens,
)
from tandem.engine.sessions.session import BaseSession

F = TypeVar("F", bound=frames.Frame)


class Handler(Protocol):
    """Serves the requests that come in on one connection."""

    def handle(self, request: RequestFrame, size_bytes: int) -> None: ...

    async def stop(self) -> None: ...


_NEVER_S = float("inf")


class Call:
    """A request that waits for replies. `up` is the emulated link that they come through."""

    __slots__ = ("deadline_s", "done", "replies", "up", "waiter")

    def __init__(self, up: Pipe | None) -> None:
        self.up = up
        self.done = False  # the other side is done with it
        self.deadline_s = _NEVER_S
        self.replies: list[AnyFrame] = []
        self.waiter: asyncio.Future[None] | None = None

    def deliver(self, reply: AnyFrame) -> None:
        if type(reply) is not frames.Tokens or reply.finish is not None:
            self.done = True
        self.fail(reply)

    def fail(self, reply: AnyFrame) -> None:
        """Deliver an error of this side; the other one may still be working."""
        self.replies.append(reply)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
            self.deadline_s = _NEVER_S

    def wait(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> asyncio.Future[None]:
        """Return a future that is done with the next reply, which is an Error after `timeout_s`."""
        self.deadline_s = loop.time() + timeout_s
        self.waiter = loop.create_future()
        return self.waiter

    def take(self) -> list[AnyFrame]:
        """Return the replies since the last call; the last may be an Error."""
        replies, self.replies = self.replies, []
        return replies


class Connection(Wire):
    """A connection to another process: drives its engines, and lets `serve` handle requests to ours.

    peer_engines: engines that the other side serves.
    peer: identity of the dialler, from `admit` of `cluster.wire.listener.serve_engines`.
    siblings: connections that the same endpoint has accepted, this one among them; none of one that was dialled.
    handler: serves the other side's requests; None: they are refused.
    finished: done when the connection is closed and all work for the other side is stopped.
    session_ids: of the sessions that this side opens; unique within the connection.
    """

    def __init__(
        self,
        peer_engines: Mapping[str, EngineInfo],
        settings: WireSettings,
        serve: Callable[[Connection], Handler] | None = None,
        resume_buffer: ResumeBuffer | None = None,
        dialler: Dialler | None = None,
    ) -> None:
        """`resume_buffer`, and on the side that dialled `dialler`: of a connection that may be resumed."""
        super().__init__(settings, resume_buffer)
        self.peer_engines = dict(peer_engines)
        self.peer: object = None
        self.siblings: Set[Connection] = frozenset()
        self.handler = serve(self) if serve else None
        self._dialler = dialler
        self._returning: asyncio.Task[None] | None = None
        self.session_ids = itertools.count(1)
        self._sequence = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopping: asyncio.Task[None] | None = None

    def engine(self, name: str, link: Link | None = None) -> RemoteEngine:
        """The other side's engine called `name`, behind an emulated link where one is given.

        Raises UnknownEngine, which lists the known ones.
        """
        if name not in self.peer_engines:
            there = ", ".join(self.peer_engines) or "none"
            raise UnknownEngine(f"no engine {name!r} at the other side; there are: {there}")
        return RemoteEngine(self, name, self.peer_engines[name], link)

    async def find(self, name: str, link: Link | None = None) -> RemoteEngine:
        """Return an engine of a side whose engines come and go: one that hello did not name is asked for."""
        if name in self.peer_engines:
            return self.engine(name, link)
        reply = await self.call(frames.GetInfo(0, 0, name), frames.Info, link)
        return RemoteEngine(self, name, reply.info, link)

    async def ask(self, method: str, body: bytes) -> bytes:
        """Something that is about no engine. Raises the EngineError that came in place of an answer."""
        return (await self.call(frames.Ask(0, 0, "", method, body), frames.AskReply)).body

    def start(self, request: RequestFrame, link: Link | None = None) -> Call:
        """Send a request. Raises EngineStopped if the connection is lost. The caller must `end` it."""
        if self.closed.done():
            raise EngineStopped(self.reason)
        request.seq = next(self._sequence)
        self._pass(request, link)
        call = self._calls[request.seq] = Call(link.up if link else None)
        return call

    def end(self, request: RequestFrame, link: Link | None = None) -> None:
        """Forget a call; if it is still running on the other side, stop it there (a Cancel goes on)."""
        call = self._calls.pop(request.seq)
        if not call.done and not self.closed.done():
            self._pass(frames.Abandon(request.session, request.seq, request.engine), link)

    def tell(self, request: RequestFrame, link: Link | None = None) -> None:
        """Send a request without waiting for its reply; nothing, if the connection is lost."""
        if not self.closed.done():
            request.seq = next(self._sequence)
            self._pass(request, link)

    async def call(self, request: RequestFrame, expected: type[F], link: Link | None = None) -> F:
        """Send a request and wait for its one reply; raises the EngineError that came in its place."""
        call = self.start(request, link)
        try:
            await call.wait(self._loop, self.settings.timeout_s)
        finally:
            self.end(request, link)
        return expect(call.replies[0], expected)  # the connection's end may follow it

    def _pass(self, frame: RequestFrame, link: Link | None) -> None:
        data = frames.encode(frame)
        if link is None:
            self.send(data)
        else:
            link.down.carry(len(data), lambda: self.send(data), self.rtt_s / 2)

    def received(self, frame: AnyFrame, size_bytes: int) -> None:
        if isinstance(frame, RequestFrame):
            if self.handler is not None:
                self.handler.handle(frame, size_bytes)
            else:
                error = UnknownEngine("this side serves no engines")
                self.send(frames.encode(frames.Error.of(error, frame.session, frame.seq)))
        elif (call := self._calls.get(frame.seq)) is None:
            pass  # a late reply to a call that was ended
        elif call.up is None:
            call.deliver(frame)
        else:
            call.up.carry(size_bytes, lambda: call.deliver(frame), self.rtt_s / 2)

    def parted(self) -> None:
        if self._dialler is not None and self._resume_buffer is not None:
            back = self._return(self._dialler, self._resume_buffer)
            self._returning = asyncio.get_running_loop().create_task(back)

    async def _return(self, dialler: Dialler, resume_buffer: ResumeBuffer) -> None:
        try:
            transport, welcome = await dialler.dial_again(resume_buffer)
        except EngineError as error:
            self.give_up(f"the other side does not resume it: {error}")  # cancels this task, which is over
            return
        try:
            self.resume(transport, welcome.received)
        except ProtocolError as error:
            transport.abort()
            self.fail(error)

    def lost(self) -> None:
        error = frames.Error.of(EngineStopped(self.reason))
        for call in self._calls.values():
            call.fail(error)
        if self._returning is not None:
            self._returning.cancel()
        self._stopping = asyncio.get_running_loop().create_task(self._stop())

    async def _stop(self) -> None:
        try:
            if self._returning is not None:
                await asyncio.wait((self._returning,))
            if self.handler is not None:
                await self.handler.stop()
        finally:
            self.finished.set_result(None)

    async def close(self) -> None:
        """Send what is queued and close; returns when the sessions it opened on either side's engines
        are told to end."""
        await super().close()
        await asyncio.shield(self.finished)

    def check(self, now_s: float) -> None:
        error = frames.Error.of(EngineStopped(f"no answer within {self.settings.timeout_s} s"))
        for call in self._calls.values():
            if now_s > call.deadline_s:
                call.fail(error)


def expect(reply: AnyFrame, expected: type[F]) -> F:
    """The reply, if it is of the expected kind; raises the EngineError it carries, or ProtocolError."""
    if type(reply) is frames.Error:
        raise reply.exception()
    if not isinstance(reply, expected):
        raise ProtocolError(f"a {type(reply).__name__} frame came in place of {expected.__name__}")
    return reply


class RemoteEngine:
    """The Engine protocol over a connection. Its `close` leaves the engine, which is another's, as it is."""

    def __init__(self, connection: Connection, name: str, info: EngineInfo, link: Link | None = None) -> None:
        self.info, self.name = info, name
        self._connection, self._link = connection, link

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> RemoteSession:
        sampling.check()  # values out of range would not survive the frame
        known = [pack_bits(ids, self.info.vocab_size) for ids in (prompt, log)]
        session = next(self._connection.session_ids)
        request = frames.Open(session, 0, self.name, known[0], sampling, known[1])
        try:
            await self._connection.call(request, frames.Done, self._link)
        except BaseException:  # the other side may have admitted it nevertheless
            self._connection.tell(frames.Cancel(session, 0, self.name), self._link)
            raise
        return RemoteSession(self.info, self.name, session, self._connection, self._link)

    async def stats(self) -> EngineStats:
        reply = await self._connection.call(frames.GetStats(0, 0, self.name), frames.StatsReply, self._link)
        return reply.stats

    async def close(self) -> None:
        pass


class RemoteSession(BaseSession):
    """A session of a RemoteEngine; `session` is its id on the wire."""

    def __init__(
        self, info: EngineInfo, engine: str, session: int, connection: Connection, link: Link | None
    ) -> None:
        super().__init__(info)
        self._engine, self._session = engine, session
        self._connection, self._link = connection, link

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        self._begin("generate")
        try:
            request = frames.Generate(self._session, 0, self._engine)
            call = self._connection.start(request, self._link)
            try:
                while True:
                    if not call.replies:
                        await call.wait(self._loop, self._connection.settings.timeout_s)
                    tokens = Tokens([])
                    for reply in call.take():
                        if not isinstance(reply, frames.Tokens):
                            break
                        tokens.ids += unpack_ids(reply.ids)
                        tokens.finish, tokens.usage = reply.finish, reply.billed
                        if reply.logprobs is not None:
                            tokens.logprobs = (tokens.logprobs or []) + reply.logprobs
                    if tokens.ids or tokens.finish is not None:
                        yield tokens
                    if tokens.finish is not None:
                        return
                    expect(reply, frames.Tokens)
            finally:
                self._connection.end(request, self._link)
        finally:
            self._finish()

    async def call(self, operation: Operation[R]) -> R:
        self._begin(operation.name)
        try:
            pack, expected = frames.REQUESTS[type(operation)]
            request = pack(operation, self._session, self._engine)
            reply = await self._connection.call(request, expected, self._link)
        finally:
            self._finish()
        result: R = frames.CARRIED[type(reply)](reply)
        return result

    async def cancel(self) -> None:
        if not self._end():
            return
        request = frames.Cancel(self._session, 0, self._engine)
        try:
            await self._connection.call(request, frames.Done, self._link)
        except EngineStopped:
            if not self._connection.closed.done():  # otherwise the other side has cancelled it by itself
                raise


async def connect(
    address: str,
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    settings: WireSettings = DEFAULTS,
    infos: Mapping[str, EngineInfo] | None = None,
    serve: Callable[[Connection], Handler] | None = None,
    instance: bytes = b"",
) -> Connection:
    """Dial "host:port" and say hello. With `settings.resume_s`, the connection dials again by itself when it breaks.

    infos, serve: engines that this side serves (see `cluster.wire.listener.dial_in`).
    instance: identifies the dialling process, in all its connections.

    Raises EngineStopped without an answer in time, Unauthorized if the token is not the right one, AlreadyConnected if
    whose it is has a connection already and may not have another.
    """
    dialler = Dialler(address, token, tls, settings, infos or {}, instance)
    transport, frame = await dialler.dial()
    if isinstance(frame, Error):
        transport.abort()
        raise frame.exception()
    resume_buffer = None
    if settings.resume_s and frame.resume_s:
        resume_buffer = ResumeBuffer(frame.name, min(settings.resume_s, frame.resume_s), settings.max_kept)
    connection = Connection(frame.engines, settings, serve, resume_buffer, dialler)
    connection.attach(transport)
    return connection
