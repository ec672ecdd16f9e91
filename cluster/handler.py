"""Runs what comes in on a connection on the engines of this side: the serving half of `cluster.remote`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

from cluster import frames
from cluster.frames import ProtocolError, Request, UnknownEngine, pack_ids, unpack_ids
from cluster.link import Link
from cluster.remote import Connection
from engine.base import Engine, EngineError, InvalidRequest, SessionCancelled, Tokens, UnknownSession

log = logging.getLogger(__name__)


Key = tuple[str, int]  # engine and session


class _Session:
    """A session that this connection opened; its operations run one after another, in order of arrival.

    opener: sequence number of the Open; last: the operation that came last.
    """

    __slots__ = ("engine", "last", "opener")

    def __init__(self, engine: Engine, opener: int) -> None:
        self.engine, self.opener = engine, opener
        self.last: asyncio.Task[None] | None = None


class EngineHandler:
    """Runs the requests of one connection on the engines of this side.

    taken: the sessions of all connections to these engines, so that none can touch another's.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        links: Mapping[str, Link],
        taken: set[Key],
        connection: Connection,
    ) -> None:
        self._engines, self._links, self._taken = engines, links, taken
        self._connection = connection
        self._sessions: dict[Key, _Session] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def handle(self, request: Request, size_bytes: int) -> None:
        """Start what is asked for; the reply leaves when it is done."""
        if (link := self._links.get(request.engine)) is None:
            self._start(request)
        else:
            link.down.carry(size_bytes, lambda: self._start(request), self._connection.rtt_s / 2)

    def _start(self, request: Request) -> None:
        if self._connection.closed.done():
            return  # it was on an emulated link when the connection was lost
        if type(request) is frames.Abandon:
            if (task := self._tasks.get(request.seq)) is not None:
                task.cancel()
            return
        if request.seq in self._tasks:
            self._connection.fail(ProtocolError(f"sequence number {request.seq} is in use"))
            return
        key = (request.engine, request.session)
        session = self._sessions.get(key)
        if type(request) is frames.Open and request.engine in self._engines and key not in self._taken:
            session = self._sessions[key] = _Session(self._engines[request.engine], request.seq)
            self._taken.add(key)
        previous = session.last if session else None
        task = asyncio.get_running_loop().create_task(self._run(request, session, previous))
        self._tasks[request.seq] = task
        if session is not None and type(request) is not frames.Cancel:
            session.last = task

    async def _run(
        self, request: Request, session: _Session | None, previous: asyncio.Task[None] | None
    ) -> None:
        try:
            reply: frames.Frame | None
            if type(request) is frames.GetStats:
                reply = frames.Stats(0, request.seq, await self._engine(request).stats())
            elif type(request) is frames.Cancel:
                await self._cancel(request, session)
                reply = frames.Done(request.session, request.seq)
            else:
                reply = await self._operate(request, session, previous)
        except EngineError as error:
            if isinstance(error, ProtocolError):
                await self._cancel(request, session)
            reply = frames.Error.of(error, request.session, request.seq)
        except Exception:
            log.exception("engine %r failed at %s", request.engine, type(request).__name__)
            internal = EngineError(f"internal error of engine {request.engine!r}")
            reply = frames.Error.of(internal, request.session, request.seq)
        finally:
            del self._tasks[request.seq]
        if reply is not None:
            self._send(reply, request.engine)

    async def _operate(
        self, request: Request, session: _Session | None, previous: asyncio.Task[None] | None
    ) -> frames.Frame | None:
        if session is None:
            self._engine(request)
            if type(request) is frames.Open:
                raise InvalidRequest(f"session {request.session} is already open")
            raise UnknownSession(f"session {request.session} was not opened on this connection")
        if previous is not None and not previous.done():
            await asyncio.wait((previous,))
        if self._sessions.get((request.engine, request.session)) is not session:
            raise SessionCancelled(f"session {request.session} was cancelled")
        if type(request) is frames.Generate:
            return await self._generate(request, session.engine)
        if type(request) is frames.Open:
            return await self._open(request, session)
        return await _OPERATIONS[type(request)](session.engine, request)

    async def _open(self, request: frames.Open, session: _Session) -> frames.Frame:
        if request.seq != session.opener:
            raise InvalidRequest(f"session {request.session} is already open")
        try:
            prompt, output = unpack_ids(request.prompt), unpack_ids(request.log)
            await session.engine.open(request.session, prompt, request.sampling, output)
        except EngineError:
            key = (request.engine, request.session)
            if self._sessions.pop(key, None) is not None:
                self._taken.discard(key)
            raise
        return frames.Done(request.session, request.seq)

    async def _generate(self, request: frames.Generate, engine: Engine) -> frames.Frame | None:
        generator = cast(AsyncGenerator[Tokens, None], engine.generate(request.session))
        async with aclosing(generator) as stream:
            async for tokens in stream:
                ids = pack_ids(tokens.ids)
                frame = frames.Tokens(request.session, request.seq, ids, tokens.finish, tokens.logprobs)
                self._send(frame, request.engine)
                if tokens.finish is not None:
                    return None
                await self._connection.writable()
        return frames.Done(request.session, request.seq)

    async def _cancel(self, request: Request, session: _Session | None) -> None:
        key = (request.engine, request.session)
        if session is None or self._sessions.pop(key, None) is None:
            return
        opening = self._tasks.get(session.opener)
        if opening is not None:  # not admitted yet: nothing may be left of it when it is
            opening.cancel()
            await asyncio.wait((opening,))
        try:
            await session.engine.cancel(request.session)
        finally:
            self._taken.discard(key)

    async def stop(self) -> None:
        """Stop everything that this connection asked for: running operations, then its sessions."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        sessions, self._sessions = self._sessions, {}
        if tasks:
            await asyncio.wait(tasks)
        for key, session in sessions.items():
            try:
                await session.engine.cancel(key[1])
            except Exception:
                log.exception("engine %r failed to cancel session %d", *key)
            finally:
                self._taken.discard(key)

    def _engine(self, request: Request) -> Engine:
        if (engine := self._engines.get(request.engine)) is None:
            raise UnknownEngine(f"no engine {request.engine!r}; there are: {', '.join(self._engines)}")
        return engine

    def _send(self, reply: frames.Frame, engine: str) -> None:
        data = frames.encode(reply)
        if (link := self._links.get(engine)) is None:
            self._connection.send(data)
        else:
            link.up.carry(len(data), lambda: self._connection.send(data), self._connection.rtt_s / 2)


async def _verify(engine: Engine, request: frames.Verify) -> frames.Frame:
    ids = unpack_ids(request.ids)
    if (probs := request.probs) is not None and not (
        len(probs.ids) == len(probs.probs) == 4 * probs.width * len(ids)
    ):
        raise ProtocolError("the draft's distributions do not fit its tokens")
    v = await engine.verify(request.session, ids, probs)
    return frames.Verdict(request.session, request.seq, v.accepted, pack_ids(v.ids), v.finish, v.logprobs)


async def _draft(engine: Engine, request: frames.Draft) -> frames.Frame:
    draft = await engine.draft(request.session, request.position, unpack_ids(request.ids), request.window)
    return frames.Drafts(request.session, request.seq, pack_ids(draft.ids), draft.probs)


async def _extend(engine: Engine, request: frames.Extend) -> frames.Frame:
    await engine.extend(request.session, request.position, unpack_ids(request.ids))
    return frames.Done(request.session, request.seq)


async def _forward(engine: Engine, request: frames.Forward) -> frames.Frame:
    if (forward := getattr(engine, "forward", None)) is None:
        raise InvalidRequest(f"engine {request.engine!r} takes no hidden states")
    hidden = await forward(request.session, request.position, request.hidden)
    return frames.Hidden(request.session, request.seq, hidden)


_OPERATIONS: dict[type[Request], Callable[[Engine, Any], Awaitable[frames.Frame]]] = {
    frames.Verify: _verify,
    frames.Draft: _draft,
    frames.Extend: _extend,
    frames.Forward: _forward,
}
