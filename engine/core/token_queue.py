"""Tokens that a running generate has delivered, and its consumer has not taken yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from tandem.engine.base import Tokens


class TokenQueue:
    """A queue with one consumer. It is cheaper than asyncio.Queue, which matters for 32 consumers between two steps."""

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
        """Yield all tokens as they come, up to those with `finish`; raise the error that follows them."""
        while True:
            for tokens in await self.take():
                yield tokens
                if tokens.finish is not None:
                    return

    async def take(self) -> list[Tokens]:
        """Return all items there are, at least one; raise the error that follows them."""
        if not self._items and not self._errors:
            self._waiter = self._loop.create_future()
            await self._waiter
        if not self._items:
            raise self._errors.pop()  # not stored: the frames it holds would be kept with it
        items, self._items = self._items, []
        return items
