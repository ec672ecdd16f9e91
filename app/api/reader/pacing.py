"""Paced delivery: hands a stream's tokens on no faster than its reader takes them in."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tandem.deployments.request.job import Delta


async def paced(deltas: AsyncGenerator[Delta, None], rate: float) -> AsyncGenerator[Delta, None]:
    """Yield the tokens of `deltas`: the first at once, token k not before (k - 1) / rate seconds after it.

    Tokens that are due together come as one delta. The end comes with the last token; an error is raised after the
    tokens before it. `deltas` is read as fast as it comes, so that a slow reader never holds up the engine; closing
    this generator closes it at once.

    rate: tokens/s.
    """
    loop, store = asyncio.get_running_loop(), _Store()
    filling = asyncio.create_task(store.fill(deltas))
    first_s, given = 0.0, 0
    try:
        while await store.has_more():
            if given == 0:
                first_s = loop.time()
            elif store.tokens:
                await asyncio.sleep(first_s + given / rate - loop.time())
            due = math.floor((loop.time() - first_s) * rate) + 1 - given
            delta = store.take(max(due, 1))  # a timer may be early by its resolution, a nanosecond
            given += len(delta.ids)
            yield delta
        await filling
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)


class _Store:
    """Deltas of the job that the reader has not been given.

    tokens: number of tokens in them.
    """

    def __init__(self) -> None:
        self._kept: list[Delta] = []
        self._news = asyncio.Event()
        self._ended = False

    @property
    def tokens(self) -> int:
        return sum(len(delta.ids) for delta in self._kept)

    async def fill(self, deltas: AsyncGenerator[Delta, None]) -> None:
        """Store every delta as it comes."""
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    self._kept.append(delta)
                    self._news.set()
        finally:
            self._ended = True
            self._news.set()

    async def has_more(self) -> bool:
        """Wait for a delta; False if the job has ended without another."""
        while not self._kept:
            if self._ended:
                return False
            self._news.clear()
            await self._news.wait()
        return True

    def take(self, tokens: int) -> Delta:
        """Take the next tokens, at most `tokens` of them; the end comes with the last."""
        taken, rest = Delta.join(self._kept).split(tokens)
        self._kept = [] if rest is None else [rest]
        return taken
