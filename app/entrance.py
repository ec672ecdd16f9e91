"""The gate as a replica of the API sees it: requests pass through one by one, and leave many at once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from deployments.gate import SILENT_S, Entry, Passage
from deployments.reports import Outbox

SIGN_S = SILENT_S / 3
"""Between two signs of life."""


class Entrance:
    """ask: calls a method of the router and returns what it says. tell: calls one that says nothing."""

    def __init__(self, ask: Callable[..., Awaitable[Passage]], tell: Callable[..., object]) -> None:
        self._ask, self._tell = ask, tell
        self._name = secrets.token_hex(8)
        self._entries: dict[int, Entry] = {}
        self._left = Outbox[int](lambda requests: self._tell("left", self._name, requests))
        self._telling: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def pass_through(self, entry: Entry) -> AsyncIterator[Passage]:
        """Entered when the request may begin. Raises LimitReached."""
        try:
            passage = await self._ask("enter", self._name, entry)
            self._entries[entry.request] = entry
            if self._telling is None or self._telling.done():
                self._telling = asyncio.get_running_loop().create_task(self._keep_telling())
            yield passage
        finally:
            self._entries.pop(entry.request, None)
            self._left.add(entry.request)

    def close(self) -> None:
        """This replica ends."""
        self._left.flush()
        if self._telling is not None:
            self._telling.cancel()

    async def _keep_telling(self) -> None:
        """Say what is under way, as long as anything is."""
        while True:
            await asyncio.sleep(SIGN_S)
            if not self._entries:
                return
            self._tell("under_way", self._name, list(self._entries.values()))
