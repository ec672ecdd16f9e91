"""What a running generate has been delivered and its consumer not yet taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from tandem.engine.base import Tokens


class Stream:
    """One consumer; lighter than asyncio.Queue, which matters where 32 of them are served between two steps."""

    __slots__ = ("_errors", "_items", "_loop", "_waiter")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: list[Tokens] = []
        self._errors: list[Exception] = []  # at most one
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Tokens | Exception) -> None:
        if isinstance(item, Exception):
            self._errors.append(item)
        else:
            self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def __aiter__(self) -> AsyncGenerator[Tokens, None]:
        """All tokens as they come, to the last; raises the error that comes among them."""
        while True:
            for tokens in await self.take():
                yield tokens
                if tokens.finish is not None:
                    return

    async def take(self) -> list[Tokens]:
        """Return everything there is, at least one item; raise the error that follows them."""
        if not self._items and not self._errors:
            self._waiter = self._loop.create_future()
            await self._waiter
        if not self._items:
            raise self._errors.pop()  # held by nothing else: its frames would be kept with it
        items, self._items = self._items, []
        return items
