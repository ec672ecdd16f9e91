"""Cache of the callers that hold keys, so that not every request asks the key service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tandem.deployments.access.keys import Caller
from tandem.deployments.lru import LRUTable

KNOWN_S = 2.0
"""Seconds that an answer is valid: a revoked key is refused after this."""
LATE_S = 0.5
"""Seconds after which a key service that does not answer is not waited for, where it has answered lately."""
STALE_S = 60.0
"""Seconds for which a caller stays known while the key service does not answer."""
KEPT = 10_000


class _Asked(NamedTuple):
    """A question about a key.

    at_s: when it was asked.
    answer: who has the key.
    before: the last answer, which is valid until `until_s` while there is no other one; None if there is none.
    """

    at_s: float
    answer: asyncio.Future[Caller | None]
    before: Caller | None
    until_s: float


class Callers:
    """find: asks the key service."""

    def __init__(
        self,
        find: Callable[[str | None], Awaitable[Caller | None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find, self._clock = find, clock
        self._known: LRUTable[str | None, _Asked] = LRUTable(KEPT)

    async def of(self, hashed: str | None) -> Caller | None:
        """Return the caller whose key has that hash; None if there is none. While the key service is away, callers stay
        known for a while."""
        now_s = self._clock()
        found = self._known.get(hashed)
        if found is None or _failed(found.answer) or (found.answer.done() and now_s >= found.at_s + KNOWN_S):
            before, until_s = (None, 0.0) if found is None else (found.before, found.until_s)
            if found is not None and found.answer.done() and not _failed(found.answer):
                before, until_s = found.answer.result(), found.at_s + STALE_S
            asked = asyncio.ensure_future(self._find(hashed))
            found = self._known[hashed] = _Asked(now_s, asked, before, until_s)
        if found.before is None or now_s >= found.until_s:
            return await asyncio.shield(found.answer)
        await asyncio.wait({found.answer}, timeout=max(0.0, found.at_s + LATE_S - now_s))
        if not found.answer.done() or _failed(found.answer):
            return found.before
        return found.answer.result()

    def forget(self) -> None:
        """Drop what is known of all keys, as something has changed."""
        self._known.clear()


def _failed(asked: asyncio.Future[Caller | None]) -> bool:
    return asked.done() and (asked.cancelled() or asked.exception() is not None)
