"""A process that can be killed: calls to it fail, and its successor gets them, as from the application's clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from tandem.deployments.request.assignment import Unavailable

T = TypeVar("T")


class Process:
    """A process of the application, of which there is one at a time."""

    def __init__(self) -> None:
        self._back: asyncio.Future[None] | None = None  # None while it is up
        self._calls: dict[asyncio.Task[Any], None] = {}

    @property
    def up(self) -> bool:
        """Whether it is there."""
        return self._back is None

    def kill(self) -> bool:
        """End it, and with it the calls that it is to answer; return False if it was not there."""
        if self._back is not None:
            return False
        self._back = asyncio.get_running_loop().create_future()
        for call in self._calls:
            call.cancel()
        return True

    def replace(self) -> None:
        """Have its successor answer from now on."""
        assert self._back is not None
        self._back.set_result(None)
        self._back = None

    async def ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the answer to a question; if the process dies meanwhile, its successor's."""
        while True:
            if self._back is not None:
                await asyncio.shield(self._back)
            call = asyncio.get_running_loop().create_task(question())
            self._calls[call] = None
            try:
                return await call
            except asyncio.CancelledError:
                call.cancel()
                task = asyncio.current_task()
                if task is None or task.cancelling():  # not the process, but the caller
                    raise
            finally:
                del self._calls[call]


async def within(limit_s: float, answer: Awaitable[T], who: str) -> T:
    """Return a process's answer. Raises Unavailable if there is none within `limit_s`."""
    try:
        async with asyncio.timeout(limit_s):
            return await answer
    except TimeoutError:
        raise Unavailable(f"{who} does not answer") from None
