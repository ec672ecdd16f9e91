"""Rules of every session: one operation at a time, none that its engine lacks, none after its end."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from tandem.engine.base import (
    EngineError,
    EngineInfo,
    EngineStopped,
    InvalidRequest,
    Operation,
    R,
    Session,
    SessionCancelled,
    UnknownSession,
)

CANCELLED = "the session was cancelled"
BUSY = "the session is still at work on its last operation"


class BaseSession(Session):
    """Base of sessions: each operation, `generate` included, runs between `_begin` and `_finish`.

    _running: number of running operations; only forwards run beside each other.
    _ended: error of an operation that ran at the session's end; None while the session is open.
    _waiters: futures of `_wait`, in its order.
    """

    def __init__(self, info: EngineInfo) -> None:
        self._info = info
        self._operations = (*info.capabilities, "extend")
        self._running, self._forwarding = 0, False
        self._loop = asyncio.get_running_loop()
        self._ended: EngineError | None = None
        self._waiters: dict[asyncio.Future[None], None] = {}

    @property
    def busy(self) -> bool:
        """Whether an operation runs."""
        return self._running > 0

    async def call(self, operation: Operation[R]) -> R:
        self._begin(operation.name)
        try:
            result: R = await self._run(operation)
            return result
        finally:
            self._finish()

    def _run(self, operation: Operation[Any]) -> Awaitable[Any]:
        """Carry out an operation that has begun, and return its result. Raise InvalidRequest if the engine lacks it."""
        raise self._lacks(operation.name)

    def _lacks(self, operation: str) -> InvalidRequest:
        return InvalidRequest(f"the engine of {self._info.model} cannot {operation}")

    def _begin(self, operation: str) -> None:
        """Start an operation. Raise UnknownSession or EngineStopped after the session's end, InvalidRequest if the
        engine lacks the operation or another one runs."""
        forward = operation == "forward"
        busy = self._running and not (forward and self._forwarding)
        if busy or self._ended is not None or operation not in self._operations:
            raise self._refusal(operation)
        self._running, self._forwarding = self._running + 1, forward

    def _finish(self) -> None:
        """End an operation."""
        self._running -= 1

    def _refusal(self, operation: str) -> EngineError:
        if isinstance(self._ended, EngineStopped):
            return EngineStopped(str(self._ended))
        if self._ended is not None:
            return UnknownSession(CANCELLED)
        if operation not in self._operations:
            return self._lacks(operation)
        return InvalidRequest(BUSY)

    def _check(self) -> None:
        """Raise the session's error if it has ended."""
        if self._ended is not None:
            raise copy.copy(self._ended)

    def _end(self, error: EngineError | None = None) -> bool:
        """End the session; its running operation raises `error`, by default SessionCancelled. Return False if it had
        ended before."""
        if self._ended is not None:
            return False
        # A copy, here and where it is raised: a raised exception keeps its frames, and so the session.
        self._ended = copy.copy(error) or SessionCancelled(CANCELLED)
        for waiter in self._waiters:
            _wake(waiter)
        return True

    async def _wait(self, arrange: Callable[[Callable[[], None]], object]) -> None:
        """Wait until the callback that `arrange` receives is called. Raise the session's error if it ends before."""
        self._check()
        waiter = self._loop.create_future()
        self._waiters[waiter] = None
        arrange(partial(_wake, waiter))
        try:
            await waiter
        finally:
            del self._waiters[waiter]
        self._check()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():  # the session may have ended, or the caller have left
        waiter.set_result(None)
