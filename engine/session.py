"""Base of sessions that carry out operations: one at a time, none that the engine lacks, none after the end."""

from __future__ import annotations

import asyncio
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
    """A session that runs each operation, `generate` included, between `_begin` and `_finish`.

    _running: operations that run, more than one only of forwards.
    _ended: what an operation that ran at the session's end raises; None while the session is open.
    """

    def __init__(self, info: EngineInfo) -> None:
        self._info = info
        self._operations = (*info.capabilities, "extend")
        self._running, self._forwarding = 0, False
        self._loop = asyncio.get_running_loop()
        self._ended: EngineError | None = None
        self._waiters: dict[asyncio.Future[None], None] = {}  # for its order

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
        """Carry out an operation that has begun. Raises InvalidRequest if the engine lacks it."""
        raise self._lacks(operation.name)

    def _lacks(self, operation: str) -> InvalidRequest:
        return InvalidRequest(f"the engine of {self._info.model} cannot {operation}")

    def _begin(self, operation: str) -> None:
        """Note that an operation runs. Raises UnknownSession or EngineStopped after the session's end, InvalidRequest
        if the engine lacks it or while another one runs."""
        forward = operation == "forward"
        if (
            self._ended is not None
            or operation not in self._operations
            or (self._running and not (forward and self._forwarding))
        ):
            raise self._refusal(operation)
        self._running, self._forwarding = self._running + 1, forward

    def _finish(self) -> None:
        """Note that an operation is over."""
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
        """Raise the error that the session ended with, if it has."""
        if self._ended is not None:
            raise self._ended

    def _end(self, error: EngineError | None = None) -> bool:
        """End the session: what its operation waits for raises `error`, by default SessionCancelled. Returns whether it
        was open."""
        if self._ended is not None:
            return False
        self._ended = error or SessionCancelled(CANCELLED)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(self._ended)
        return True

    async def _wait(self, arrange: Callable[[Callable[[], None]], object]) -> None:
        """Wait until the function that `arrange` is given is called; raises at the session's end."""
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
    if not waiter.done():  # the session may have ended, or the caller have given up
        waiter.set_result(None)
