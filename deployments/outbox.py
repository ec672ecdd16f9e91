"""Batches items for another process into one call.

A call to another process costs far more than its contents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

DELAY_S = 0.1
"""Longest that an item waits for others."""


class Outbox(Generic[T]):
    """Items that were not sent yet. send: function that sends them."""

    def __init__(self, send: Callable[[Sequence[T]], object]) -> None:
        self._send = send
        self._kept: list[T] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: T) -> None:
        """Add an item, to be sent soon."""
        self._kept.append(item)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY_S, self.flush)

    def take(self) -> Sequence[T]:
        """Remove and return all items, for a call that goes to the same process anyway."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kept, self._kept = self._kept, []
        return kept

    def flush(self) -> None:
        """Send all items now."""
        if kept := self.take():
            self._send(kept)
