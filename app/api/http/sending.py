"""Work that sends a response, for as long as its client is there and reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import Message, Receive, Send

STUCK_S = 60.0
"""Seconds after which a client that reads nothing of a write is disconnected; up to twice as long."""
PIECE = 2**16
"""Bytes of a write, of which a client that reads slowly takes in some within STUCK_S."""


class Sending:
    """Work that ends when its client has gone, or takes in nothing."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._writes, self._writing = 0, False

    async def run(self, work: Callable[[Send], Coroutine[Any, Any, None]], cut: Callable[[], object]) -> None:
        """Run the work, which gets a `send`. cut: called if it had to be ended."""
        task = asyncio.create_task(work(self._write))
        gone = asyncio.create_task(self._disconnected())
        try:
            await self._until_over({task, gone})
        finally:
            gone.cancel()
            if task.cancel():
                cut()
        if task.done() and not task.cancelled():
            task.result()

    async def _until_over(self, tasks: set[asyncio.Task[None]]) -> None:
        """Return when one of the tasks is done, or the client takes in nothing."""
        seen = -1  # the write that was under way when this was last looked at
        while True:
            done, _ = await asyncio.wait(tasks, timeout=STUCK_S, return_when=asyncio.FIRST_COMPLETED)
            if done or (self._writing and self._writes == seen):
                return
            seen = self._writes if self._writing else -1

    async def _write(self, message: Message) -> None:
        self._writes += 1
        self._writing = True
        await self._send(message)
        self._writing = False

    async def _disconnected(self) -> None:
        """Return when the client has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
