"""Rules of every session: one operation at a time, none that its engine lacks, none after its end."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from functools import partial

from tandem.engine.base import (
    DraftProbs,
    Drafts,
    EngineError,
    EngineInfo,
    EngineStopped,
    Forwarded,
    InvalidRequest,
    SessionCancelled,
    Tensor,
    UnknownSession,
    Verdict,
)

CANCELLED = "the session was cancelled"
BUSY = "the session is still at work on its last operation"


class BaseSession:
    """Base of sessions. An operation calls `_begin` first and sets `_busy` to False at its end; operations that are not
    overridden are refused.

    _ended: error of an operation that ran at the session's end; None while the session is open.
    """

    def __init__(self, info: EngineInfo) -> None:
        self._info = info
        self._operations = (*info.capabilities, "extend")
        self._busy = False
        self._loop = asyncio.get_running_loop()
        self._ended: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._forwards = asyncio.Lock()  # forwards take turns

    @property
    def busy(self) -> bool:
        """Whether an operation runs."""
        return self._busy

    async def verify(self, drafts: Sequence[int], probs: DraftProbs | None = None) -> Verdict:
        raise self._lacks("verify")

    async def draft(self, position: int, tokens: Sequence[int], window: int) -> Drafts:
        raise self._lacks("draft")

    async def forward(self, position: int, hidden: Tensor, wanted: int) -> Forwarded:
        raise self._lacks("forward")

    def _lacks(self, operation: str) -> InvalidRequest:
        return InvalidRequest(f"the engine of {self._info.model} cannot {operation}")

    def _begin(self, operation: str) -> None:
        """Start an operation. Raise UnknownSession or EngineStopped after the session's end, InvalidRequest if the
        engine lacks the operation or another one runs."""
        if self._busy or self._ended is not None or operation not in self._operations:
            raise self._refusal(operation)
        self._busy = True

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
        if self._waiter is not None:
            _wake(self._waiter)
        return True

    async def _wait(self, arrange: Callable[[Callable[[], None]], object]) -> None:
        """Wait until the callback that `arrange` receives is called. Raise the session's error if it ends before."""
        self._check()
        waiter = self._waiter = self._loop.create_future()
        arrange(partial(_wake, waiter))
        await waiter
        self._check()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():  # the session may have ended, or the caller have left
        waiter.set_result(None)
