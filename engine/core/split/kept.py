"""Hidden states that a middle keeps between the turns of a conversation, under handles that devices have drawn.

The states are in host memory, with the numbers of their rows, by which the KV cache finds its blocks as long as it has
them; what it has dropped is computed again, without asking the device. A gateway puts the device's name before its
handles, so that no session takes another's.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from tandem.engine.core.split.rows import Rows

KEPT_S = 600.0
"""Longest that states are kept."""
MOST, MOST_BYTES = 256, 256 * 2**20
"""Most entries, and bytes of them all."""


class KeptRows(NamedTuple):
    """States of one session: rows and their numbers; and since when they are kept."""

    rows: Rows
    numbers: list[int]
    since_s: float


class KeptStates:
    """Kept states by handle."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES, kept_s: float = KEPT_S) -> None:
        self._most, self._most_bytes, self._kept_s = most, most_bytes, kept_s
        self._kept: OrderedDict[str, KeptRows] = OrderedDict()  # the oldest first
        self.bytes = 0

    def put(self, handle: str, kept: KeptRows) -> None:
        """Keep states in place of those that were kept under the handle; the oldest go where there is no room."""
        self._drop(handle)
        if kept.rows.nbytes > self._most_bytes or not kept.numbers:
            return
        self._kept[handle] = kept
        self.bytes += kept.rows.nbytes
        while len(self._kept) > self._most or self.bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))
        self._expire(kept.since_s)

    def take(self, handle: str, now_s: float) -> KeptRows | None:
        """Return states, which are the caller's from then on; None if none are kept."""
        self._expire(now_s)
        kept = self._kept.get(handle)
        self._drop(handle)
        return kept

    def __len__(self) -> int:
        return len(self._kept)

    def _expire(self, now_s: float) -> None:
        while self._kept and next(iter(self._kept.values())).since_s <= now_s - self._kept_s:
            self._drop(next(iter(self._kept)))

    def _drop(self, handle: str) -> None:
        if (kept := self._kept.pop(handle, None)) is not None:
            self.bytes -= kept.rows.nbytes
