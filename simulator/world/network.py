"""Engines at the other end of a link, in virtual time: the live link's model, with its faults.

A call crosses as a request and a reply, a stream as many replies, of about the size that the wire's frames have
(`cluster.wire.frames`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from functools import partial
from math import inf
from typing import Any

from tandem.cluster.link.link import Link, Pipe
from tandem.cluster.wire.wire import WireSettings
from tandem.engine.base import (
    Engine,
    EngineError,
    EngineInfo,
    EngineStats,
    EngineStopped,
    Operation,
    R,
    Sampling,
    Session,
    Tensor,
    Tokens,
)
from tandem.engine.core.token_queue import TokenQueue

HEADER_BYTES = 24  # of a frame: length, session, sequence number, tag
TOKEN_BYTES = 3  # a token id as the wire packs it
SILENCE_S = WireSettings().silence_s  # until a silent connection counts as lost
RESUME_S = (
    30.0  # for which the ends of one that is broken wait for each other, as the gateway's settings have it
)


def frame_bytes(tokens: int) -> int:
    """Return the size of a frame with `tokens` token ids."""
    return HEADER_BYTES + TOKEN_BYTES * tokens


def carried_bytes(said: object) -> int:
    """Return the size of the frame of an operation or a result."""
    hidden: Tensor | None = getattr(said, "hidden", None)
    return frame_bytes(len(getattr(said, "ids", ()))) + (0 if hidden is None else hidden.data.nbytes)


class Path:
    """Path from a caller to an engine and back, over one link.

    there, back: the link's two directions, from the caller.
    reached_s: time of the loop's clock since which the ends are connected; infinite while they are parted and may
        resume.
    A path that is cut ends the sessions opened over it and refuses calls, as a broken connection does; a stalled one
    keeps what is sent until it is healed, or counts as cut after `SILENCE_S`. A parted one keeps it, too, but both
    ends know; it counts as cut after `RESUME_S`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, there: Pipe, back: Pipe) -> None:
        self._loop, self._there, self._back = loop, there, back
        # dicts, for their order
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._streams: dict[TokenQueue, None] = {}
        self._sessions: dict[Session, None] = {}
        self._cut, self.reached_s = False, -inf
        self._stalled: list[tuple[Pipe, int, Callable[[], None]]] | None = None
        self._silence: asyncio.TimerHandle | None = None

    @classmethod
    def to_device(cls, loop: asyncio.AbstractEventLoop, link: Link) -> Path:
        """Return the path from the cloud to a device behind the link."""
        return cls(loop, link.down, link.up)

    @classmethod
    def to_cloud(cls, loop: asyncio.AbstractEventLoop, link: Link) -> Path:
        """Return the path from a device to the cloud."""
        return cls(loop, link.up, link.down)

    def cut(self) -> None:
        """Cut the path; both ends notice."""
        self._cut, self._stalled, self.reached_s = True, None, -inf
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_exception(EngineStopped("the connection is lost"))
        for stream in self._streams:
            stream.put(EngineStopped("the connection is lost"))
        sessions, self._sessions = self._sessions, {}
        for session in sessions:
            _spawn(_end(session, self))

    @property
    def is_cut(self) -> bool:
        """Whether the path is cut."""
        return self._cut

    @property
    def is_clear(self) -> bool:
        """Whether frames sent now arrive, unless the path is cut meanwhile."""
        return self._stalled is None and not self._cut

    def stall(self) -> None:
        """Stall the path, without any error: frames sent from now on wait."""
        if self.is_clear:
            self._stalled = []
            self._silence = self._loop.call_later(SILENCE_S, self.cut)

    def part(self) -> None:
        """Break the connection so that it may be resumed: frames sent from now on wait for that."""
        if self.is_clear:
            self.reached_s, self._stalled = inf, []
            self._silence = self._loop.call_later(RESUME_S, self.cut)

    def heal(self) -> None:
        """Repair the path; frames kept by a stall are sent on."""
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        kept, self._cut, self._stalled = self._stalled or [], False, None
        self.reached_s = self._loop.time()
        for pipe, size, deliver in kept:
            pipe.carry(size, deliver)

    def send(self, deliver: Callable[[], None], tokens: int = 0) -> None:
        """Send a frame without waiting for it."""
        self._carry(self._there, frame_bytes(tokens), deliver)

    def reply(self, deliver: Callable[[], None], tokens: int = 0) -> None:
        """Send a frame from the engine's end."""
        self._carry(self._back, frame_bytes(tokens), deliver)

    def opened(self, session: Session) -> None:
        """Register a session opened over this path, which may have been cut meanwhile."""
        self._sessions[session] = None
        if self._cut:
            _spawn(_end(session, self))

    def ended(self, session: Session) -> None:
        """Remove a session."""
        self._sessions.pop(session, None)

    def listen(self, stream: TokenQueue) -> None:
        """Register a stream of replies."""
        self._streams[stream] = None

    def leave(self, stream: TokenQueue) -> None:
        """Remove a stream of replies."""
        self._streams.pop(stream, None)

    def there(self, size_bytes: int = HEADER_BYTES) -> asyncio.Future[None]:
        """Send a frame to the engine. The future is done on its arrival; it fails with EngineStopped."""
        return self._cross(self._there, size_bytes)

    def back(self, size_bytes: int = HEADER_BYTES) -> asyncio.Future[None]:
        """Send a frame to the caller, as `there`."""
        return self._cross(self._back, size_bytes)

    def _cross(self, pipe: Pipe, size_bytes: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.Future(loop=self._loop)
        if self._cut:
            future.set_exception(EngineStopped("there is no connection"))
        else:
            self._waiting[future] = None
            self._carry(pipe, size_bytes, partial(self._arrived, future))
        return future

    def _arrived(self, future: asyncio.Future[None]) -> None:
        if not future.done():  # the waiter may have been cancelled
            future.set_result(None)
        self._waiting.pop(future, None)

    def _carry(self, pipe: Pipe, size: int, deliver: Callable[[], None]) -> None:
        if self._stalled is None and not self._cut:
            pipe.carry(size, deliver)
        elif self._stalled is not None:
            self._stalled.append((pipe, size, deliver))


class LinkedEngine:
    """The Engine protocol over an engine at the other end of a path."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine, self._path = engine, path

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> LinkedSession:
        path = self._path
        await path.there(frame_bytes(len(prompt) + len(log)))
        session = await self._engine.open(prompt, sampling, log)
        path.opened(session)
        try:
            await path.back()
        except BaseException:
            path.send(partial(_leave, session, path))
            raise
        return LinkedSession(session, path)

    async def stats(self) -> EngineStats:
        await self._path.there()
        stats = await self._engine.stats()
        await self._path.back()
        return stats

    async def close(self) -> None:
        """Do nothing: the engine belongs to the other end."""


class LinkedSession(Session):
    """A session at the other end of a path."""

    __slots__ = ("_path", "_session", "_stopping")

    def __init__(self, session: Session, path: Path) -> None:
        self._session, self._path = session, path
        self._stopping: asyncio.Task[None] | None = None

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        stream, path = TokenQueue(), self._path
        await self._there()
        pump = asyncio.get_running_loop().create_task(self._pump(stream))
        path.listen(stream)
        try:
            async for tokens in stream:
                yield tokens
        finally:
            path.leave(stream)
            if not pump.done():
                path.send(partial(self._stop, pump))

    def _stop(self, pump: asyncio.Task[None]) -> None:
        pump.cancel()
        self._stopping = pump

    async def _there(self, size_bytes: int = HEADER_BYTES) -> None:
        """Carry a call to the engine, and wait until an operation stopped before it has ended."""
        await self._path.there(size_bytes)
        if self._stopping is not None:
            await asyncio.wait((self._stopping,))
            self._stopping = None

    async def _pump(self, stream: TokenQueue) -> None:
        """Send the engine's tokens as they come."""
        path = self._path
        try:
            async with aclosing(self._session.generate()) as tokens_of_engine:
                async for tokens in tokens_of_engine:
                    path.reply(_put(stream, tokens), len(tokens.ids))
        except Exception as error:
            path.reply(_put(stream, error))

    async def call(self, operation: Operation[R]) -> R:
        await self._there(carried_bytes(operation))
        result = await self._session.call(operation)
        await self._path.back(carried_bytes(result))
        return result

    async def cancel(self) -> None:
        await asyncio.shield(_spawn(self._end()))  # frames arrive even without a waiter
        await self._path.back()

    async def _end(self) -> None:
        await self._path.there()
        await _end(self._session, self._path)


async def _end(session: Session, path: Path) -> None:
    path.ended(session)
    with suppress(
        EngineError
    ):  # its engine, which may be behind another link, is gone, and the session with it
        await session.cancel()


def _leave(session: Session, path: Path) -> None:
    _spawn(_end(session, path))


def _put(stream: TokenQueue, item: Tokens | Exception) -> Callable[[], None]:
    return lambda: stream.put(item)


_spawned: set[asyncio.Task[None]] = set()


def _spawn(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run a coroutine in the background, to its end."""
    task = asyncio.get_running_loop().create_task(coroutine)
    _spawned.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[None]) -> None:
    """Ignore EngineError of a background task, which waiters see themselves; re-raise others."""
    _spawned.discard(task)
    if not task.cancelled() and (error := task.exception()) and not isinstance(error, EngineError):
        raise error
