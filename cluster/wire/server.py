"""Runs what comes in on a connection on the engines of this side: the serving half of `cluster.wire.client`."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from functools import partial
from types import MappingProxyType
from typing import Any

from tandem.cluster.link.link import Link
from tandem.cluster.wire import frames
from tandem.cluster.wire.client import Connection
from tandem.cluster.wire.frames import ProtocolError, RequestFrame, UnknownEngine, pack_ids, unpack_ids
from tandem.engine.base import (
    Engine,
    EngineError,
    InvalidRequest,
    NoCapacity,
    Session,
    SessionCancelled,
    UnknownSession,
)

log = logging.getLogger(__name__)


QUIET_S = 1.5
"""Seconds after which a connection on which nothing came, not even the ping of every second, may hold no place that
another one needs, unless it answers."""
SIGN_S = 0.4
"""Seconds within which one that is there answers."""
Key = tuple[str, int]  # engine and session


class _Opened:
    """A session that this connection opened. Its operations run one after another, in order of arrival, also when the
    one before is abandoned and takes a while to end.

    session: None until the engine has accepted it.
    opening: task that opens it.
    over: whether it was cancelled, or not accepted.
    busy: whether an operation runs.
    waiting: turns of the operations behind it.
    """

    __slots__ = ("busy", "opening", "over", "session", "waiting")

    def __init__(self) -> None:
        self.session: Session | None = None
        self.opening: asyncio.Task[None] | None = None
        self.over = self.busy = False
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Wait for the operations before, where `busy`."""
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.leave()  # it was just given
            raise

    def leave(self) -> None:
        """Pass the turn to the next operation."""
        while self.waiting:
            if not (turn := self.waiting.popleft()).done():
                turn.set_result(None)
                return
        self.busy = False


class EngineHandler:
    """Runs the requests of one connection on the engines of this side. No connection knows another's sessions.

    engines: by name; they may come and go.
    links: emulated links in front of engines, by name.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        connection: Connection,
        links: Mapping[str, Link] = MappingProxyType({}),
    ) -> None:
        self._engines, self._connection, self._links = engines, connection, links
        self._sessions: dict[Key, _Opened] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._cancels: set[int] = set()  # of the tasks, those that nothing stops
        self._loop = asyncio.get_running_loop()

    def handle(self, request: RequestFrame, size_bytes: int) -> None:
        """Start a request; the reply is sent when it is done."""
        if (link := self._links.get(request.engine)) is None:
            self._start(request)
        else:
            link.down.carry(size_bytes, lambda: self._start(request), self._connection.rtt_s / 2)

    def _start(self, request: RequestFrame) -> None:
        if self._connection.closed.done():
            return  # it was on an emulated link when the connection was lost
        seq = request.seq
        if type(request) is frames.Abandon:
            if seq in self._tasks and seq not in self._cancels:
                self._tasks[seq].cancel()
                self._tasks[seq].add_done_callback(partial(self._forget_task, seq))  # it may never have begun
            return
        if seq in self._tasks:
            self._connection.fail(ProtocolError(f"sequence number {seq} is in use"))
            return
        key = (request.engine, request.session)
        opened = self._sessions.get(key)
        new = type(request) is frames.Open and opened is None and request.engine in self._engines
        if new:
            opened = self._sessions[key] = _Opened()
        task = self._tasks[seq] = self._loop.create_task(self._run(request, opened))
        if opened is not None and new:
            opened.opening = task
        elif type(request) is frames.Cancel:
            self._cancels.add(seq)

    def _forget_task(self, seq: int, task: asyncio.Task[None]) -> None:
        if self._tasks.get(seq) is task:
            del self._tasks[seq]

    async def _run(self, request: RequestFrame, opened: _Opened | None) -> None:
        try:
            reply: frames.Frame | None
            if type(request) is frames.Cancel:
                await self._cancel(request, opened)
                reply = frames.Done(request.session, request.seq)
            elif type(request) is frames.GetStats:
                reply = frames.StatsReply(0, request.seq, await self._engine(request).stats())
            elif type(request) is frames.GetInfo:
                reply = frames.Info(0, request.seq, (await self.find(request.engine)).info)
            elif type(request) is frames.Ask:
                reply = frames.AskReply(0, request.seq, await self.answer(request.method, request.body))
            elif opened is not None:
                came_s = self._loop.time()
                if opened.busy:
                    await opened.turn()
                opened.busy = True
                try:
                    reply = await self._operate(request, opened)
                    if type(reply) is frames.Hidden:  # it may have waited for the one before
                        reply.forwarded.took_s = self._loop.time() - came_s
                finally:
                    opened.leave()
            else:
                self._engine(request)
                raise UnknownSession(f"session {request.session} was not opened on this connection")
        except EngineError as error:
            if isinstance(error, ProtocolError):
                await self._cancel(request, opened)
            reply = frames.Error.of(error, request.session, request.seq)
        except Exception:
            log.exception("engine %r failed at %s", request.engine, type(request).__name__)
            internal = EngineError(f"internal error of engine {request.engine!r}")
            reply = frames.Error.of(internal, request.session, request.seq)
        finally:
            self._tasks.pop(request.seq, None)
            self._cancels.discard(request.seq)
        if reply is not None:
            self._send(reply, request.engine)

    async def _operate(self, request: RequestFrame, opened: _Opened) -> frames.Frame | None:
        if type(request) is frames.Open:
            if opened.opening is not asyncio.current_task():
                raise InvalidRequest(f"session {request.session} is already open")
            return await self._open(request, opened)
        if opened.session is None or opened.over:
            raise SessionCancelled(f"session {request.session} was cancelled")
        if type(request) is frames.Generate:
            return await self._generate(request, opened.session)
        result: Any = await opened.session.call(frames.CARRIED[type(request)](request))
        return frames.REPLIES[type(result)](result, request.session, request.seq)

    async def _open(self, request: frames.Open, opened: _Opened) -> frames.Frame:
        try:
            prompt, output = unpack_ids(request.prompt), unpack_ids(request.log)
            engine = self._engines[request.engine]
            try:
                opened.session = await engine.open(prompt, request.sampling, output)
            except NoCapacity:
                if not await _end_silent(self._connection.siblings):
                    raise
                opened.session = await engine.open(prompt, request.sampling, output)
        except BaseException:
            self._forget(request, opened)
            raise
        return frames.Done(request.session, request.seq)

    async def _generate(self, request: frames.Generate, session: Session) -> frames.Frame | None:
        async with aclosing(session.generate()) as stream:
            async for tokens in stream:
                ids = pack_ids(tokens.ids)
                said = (request.session, request.seq, ids, tokens.finish, tokens.logprobs)
                frame = (
                    frames.Tokens(*said) if tokens.usage is None else frames.LastTokens(*said, tokens.usage)
                )
                self._send(frame, request.engine)
                if tokens.finish is not None:
                    return None
                await self._connection.writable()
        return frames.Done(request.session, request.seq)

    async def _cancel(self, request: RequestFrame, opened: _Opened | None) -> None:
        if opened is None or not self._forget(request, opened):
            return
        if opened.session is None and opened.opening is not None:
            opened.opening.cancel()  # not admitted yet: nothing may be left of it when it is
            await asyncio.wait((opened.opening,))
        if opened.session is not None:
            await opened.session.cancel()

    def _forget(self, request: RequestFrame, opened: _Opened) -> bool:
        """Take the session off the books; whether it was on them."""
        if opened.over:
            return False
        opened.over = True
        del self._sessions[request.engine, request.session]
        return True

    async def stop(self) -> None:
        """Stop everything that this connection asked for: running operations, then its sessions."""
        for seq, task in self._tasks.items():
            if seq not in self._cancels:
                task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        await self.end_sessions()

    @property
    def sessions(self) -> int:
        """Sessions that the other side has open, or is opening."""
        return len(self._sessions)

    async def end_sessions(self) -> None:
        """Cancel all that the other side has open; whatever it asks of them fails."""
        sessions, self._sessions = self._sessions, {}
        for (engine, _), opened in sessions.items():
            opened.over = True
            try:
                if opened.session is not None:
                    await opened.session.cancel()
            except Exception:
                log.exception("engine %r failed to cancel a session", engine)

    async def find(self, engine: str) -> Engine:
        """Return the engine of that name. Raises UnknownEngine."""
        return self._named(engine)

    async def answer(self, method: str, body: bytes) -> bytes:
        """Answer a request of the other side that concerns no engine. Raises EngineError."""
        raise ProtocolError(f"there is no method {method!r} here")

    def _engine(self, request: RequestFrame) -> Engine:
        return self._named(request.engine)

    def _named(self, name: str) -> Engine:
        if (engine := self._engines.get(name)) is None:
            raise UnknownEngine(f"no engine {name!r}; there are: {', '.join(self._engines) or 'none'}")
        return engine

    def _send(self, reply: frames.Frame, engine: str) -> None:
        data = frames.encode(reply)
        if (link := self._links.get(engine)) is None:
            self._connection.send(data)
        else:
            link.up.carry(len(data), lambda: self._connection.send(data), self._connection.rtt_s / 2)


async def _end_silent(connections: Iterable[Connection]) -> bool:
    """End the sessions of those connections whose other side does not answer, as it is stopped; return whether there
    were any. Peers that have shown who they are keep theirs: they may be behind a network that stalls."""
    quiet = [
        (connection, connection.handler)
        for connection in connections
        if connection.quiet_s > QUIET_S
        and connection.peer is None
        and not connection.away
        and isinstance(connection.handler, EngineHandler)
    ]
    holding = [(connection, handler) for connection, handler in quiet if handler.sessions]
    answers = await asyncio.gather(*(connection.answers(SIGN_S) for connection, _ in holding))
    silent = [handler for (_, handler), does in zip(holding, answers, strict=True) if not does]
    for handler in silent:
        await handler.end_sessions()
    return bool(silent)
