"""Operators' orders in force, kept in the cluster's store for a scheduler's successor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from contextlib import suppress

import msgspec

from tandem.cluster.note import Note, NoteError
from tandem.deployments.control.orders import Orders, forget
from tandem.deployments.request.assignment import Unavailable

logger = logging.getLogger("ray.serve")


class KeptOrders:
    """Orders in force. The store is waited for in threads, as it may be away.

    now: in force.
    """

    def __init__(self, note: Note) -> None:
        self.now = Orders()
        self._note, self._changing = note, asyncio.Lock()

    async def read(self) -> None:
        """Follow the orders that a predecessor has kept. Raises NoteError."""
        kept = await asyncio.to_thread(self._note.read)
        if kept is not None:
            self.now = msgspec.json.decode(kept, type=Orders)

    async def change(self, change: Callable[[Orders], Orders]) -> None:
        """Change the orders, once that is kept. Raises what `change` raises, and Unavailable if they cannot be kept."""
        async with self._changing:
            changed = change(self.now)
            try:
                await asyncio.to_thread(self._note.write, msgspec.json.encode(changed))
            except NoteError as error:
                raise Unavailable(f"the cluster's store takes no orders now: {error}") from None
            self.now = changed

    async def forget(self, gone: Set[str]) -> None:
        """Forget the orders for replicas that are gone, if the store is there."""
        try:
            await self.change(lambda orders: forget(orders, gone))
        except Unavailable as error:
            logger.warning("orders for replicas that are gone stay: %s", error)

    async def clear(self) -> None:
        """Keep none, as there will be no successor."""
        with suppress(NoteError):
            await asyncio.to_thread(self._note.clear)
