"""Responses that the API keeps for a while, so that a conversation may go on from them: in memory, bounded.

They lie where the keys do, in one place for all replicas of the API, and are gone when that restarts.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from pydantic import Field

from tandem.engine.config import Strict


class KeptSettings(Strict):
    """Memory for responses.

    kept_s: time that a response is kept; 0 keeps none.
    kept_bytes: most memory for all of them; the oldest give way.
    """

    kept_s: float = Field(3600.0, ge=0)
    kept_bytes: int = Field(2**26, ge=0)


class _Kept(NamedTuple):
    until_s: float
    body: bytes


class KeptResponses:
    """Responses by account and id; those of other accounts are not found."""

    def __init__(self, settings: KeptSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: returns seconds."""
        self._settings, self._clock = settings, clock
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()  # the oldest first
        self._bytes = 0

    async def keep(self, account: str, id: str, body: bytes) -> bool:
        """Keep a response; return False if it is too large, or none is kept."""
        if not self._settings.kept_s or len(body) > self._settings.kept_bytes:
            return False
        await self.drop(account, id)
        self._kept[account, id] = _Kept(self._clock() + self._settings.kept_s, body)
        self._bytes += len(body)
        self._forget_old()
        return True

    async def get(self, account: str, id: str) -> bytes | None:
        """Return a response; None if it is not there, or not any more."""
        self._forget_old()
        found = self._kept.get((account, id))
        return found and found.body

    async def drop(self, account: str, id: str) -> bool:
        """Forget a response; return whether it was there."""
        self._forget_old()
        found = self._kept.pop((account, id), None)
        self._bytes -= 0 if found is None else len(found.body)
        return found is not None

    def _forget_old(self) -> None:
        """Forget what is too old, and the oldest while there is too much."""
        now_s = self._clock()
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if oldest.until_s > now_s and self._bytes <= self._settings.kept_bytes:
                return
            self._kept.popitem(last=False)
            self._bytes -= len(oldest.body)
