"""Cache of the callers that hold keys, so that not every request asks the key service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tandem.deployments.access.keys import Caller
from tandem.deployments.lru import LRUTable

KNOWN_S = 2.0
"""Seconds that an answer is valid: a revoked key is refused after this."""
KEPT = 10_000


class Callers:
    """find: asks the key service."""

    def __init__(
        self,
        find: Callable[[str | None], Awaitable[Caller | None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find, self._clock = find, clock
        self._known: LRUTable[str | None, tuple[float, asyncio.Future[Caller | None]]] = LRUTable(KEPT)

    async def of(self, hashed: str | None) -> Caller | None:
        """Return the caller whose key has that hash; None if there is none."""
        now_s = self._clock()
        found = self._known.get(hashed)
        if found is None or now_s >= found[0] or _failed(found[1]):
            found = self._known[hashed] = now_s + KNOWN_S, asyncio.ensure_future(self._find(hashed))
        return await asyncio.shield(found[1])

    def forget(self) -> None:
        """Something has changed."""
        self._known.clear()


def _failed(asked: asyncio.Future[Caller | None]) -> bool:
    return asked.done() and (asked.cancelled() or asked.exception() is not None)
