"""Sends bills to the key service, many at once, again and again until they are booked."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping

from tandem.deployments.access.quota import Standing
from tandem.deployments.access.store import BillBatch
from tandem.deployments.request.bill import Charge

logger = logging.getLogger("ray.serve")

BOOKED_S = 1.0
"""Longest wait of an answer's end for its bill to be booked; while the key service is away, it is sent again later."""
AGAIN_S = 0.5
"""Pause before a batch is sent again that was not confirmed."""


class BillSender:
    """Bills that are not booked yet. One batch is on its way at a time; bills that come meanwhile are the next one.

    send: returns when a batch is on disk, which books it once however often it is sent: what its accounts with limits
    of dollars have spent now.
    """

    def __init__(self, send: Callable[[BillBatch], Awaitable[Mapping[str, Standing]]]) -> None:
        self._send = send
        self._name, self._number = secrets.token_hex(8), 0
        self._waiting: list[tuple[Charge, Callable[[Standing], object]]] = []
        self._last: asyncio.Future[None] | None = None  # done when the latest bill is booked
        self._sending: asyncio.Task[None] | None = None

    @property
    def last(self) -> asyncio.Future[None] | None:
        """Future that is done when all bills so far are booked; None if there were none."""
        return self._last

    def add(self, charge: Charge, told: Callable[[Standing], object] = lambda _: None) -> None:
        """Send a bill. told: called once it is booked, with what its account has spent since."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            self._last = loop.create_future()
        self._waiting.append((charge, told))
        if self._sending is None or self._sending.done():
            self._sending = loop.create_task(self._send_all())

    async def booked(self, within_s: float) -> None:
        """Return when all bills so far are booked, or after `within_s`."""
        if self._last is not None:
            await asyncio.wait({self._last}, timeout=within_s)

    def close(self) -> None:
        """Send no more."""
        if self._sending is not None:
            self._sending.cancel()

    async def _send_all(self) -> None:
        while self._waiting:
            assert self._last is not None
            sent, self._waiting, booked = self._waiting, [], self._last
            self._number += 1
            batch = BillBatch(self._name, self._number, [charge for charge, _ in sent])
            standings = await self._send_until_booked(batch)
            for charge, told in sent:
                told(standings.get(charge.account, Standing()))
            booked.set_result(None)

    async def _send_until_booked(self, batch: BillBatch) -> Mapping[str, Standing]:
        while True:
            try:
                return await self._send(batch) or {}  # nothing from a key service of version 0.1
            except Exception as error:  # whatever it is, the bills are due
                logger.warning("%d bills are sent again: %s", len(batch.charges), error)
            await asyncio.sleep(AGAIN_S)
