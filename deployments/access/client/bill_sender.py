"""Sends bills to the key service, many at once, again and again until they are booked."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable

from tandem.deployments.access.store import BillBatch
from tandem.deployments.request.bill import Charge

logger = logging.getLogger("ray.serve")

AGAIN_S = 0.5
"""Pause before a batch is sent again that was not confirmed."""


class BillSender:
    """Bills that are not booked yet. One batch is on its way at a time; bills that come meanwhile are the next one.

    send: returns when a batch is on disk, which books it once however often it is sent.
    """

    def __init__(self, send: Callable[[BillBatch], Awaitable[object]]) -> None:
        self._send = send
        self._name, self._number = secrets.token_hex(8), 0
        self._waiting: list[Charge] = []
        self._last: asyncio.Future[None] | None = None  # done when the latest bill is booked
        self._sending: asyncio.Task[None] | None = None

    def add(self, charge: Charge) -> None:
        """Send a bill."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            self._last = loop.create_future()
        self._waiting.append(charge)
        if self._sending is None or self._sending.done():
            self._sending = loop.create_task(self._send_all())

    async def booked(self, within_s: float) -> None:
        """Return when all bills so far are booked, at the latest after so many seconds."""
        if self._last is not None:
            await asyncio.wait({self._last}, timeout=within_s)

    def close(self) -> None:
        """Send no more."""
        if self._sending is not None:
            self._sending.cancel()

    async def _send_all(self) -> None:
        while self._waiting:
            assert self._last is not None
            charges, self._waiting, booked = self._waiting, [], self._last
            self._number += 1
            await self._send_until_booked(BillBatch(self._name, self._number, charges))
            booked.set_result(None)

    async def _send_until_booked(self, batch: BillBatch) -> None:
        while True:
            try:
                await self._send(batch)
                return
            except Exception as error:  # whatever it is, the bills are due
                logger.warning("%d bills are sent again: %s", len(batch.charges), error)
            await asyncio.sleep(AGAIN_S)
