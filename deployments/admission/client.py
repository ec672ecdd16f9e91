"""The gate as a replica of the API sees it: requests pass through one by one, and leave many at once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tandem.deployments.admission.controller import SIGN_S
from tandem.deployments.admission.entry import Entry, Passage
from tandem.deployments.outbox import Outbox
from tandem.deployments.request.assignment import RoutingRequest

CLOSING_S = 1.0
"""Seconds within which sessions close; one that takes longer is at an endpoint that is gone, and its place with it."""


class RemoteGate(Protocol):
    """The admission controller, which the router holds."""

    async def enter(
        self, replica: str, entry: Entry, left: Sequence[int], wanted: Sequence[RoutingRequest]
    ) -> Passage: ...

    def left(self, replica: str, requests: Sequence[int]) -> None: ...

    def under_way(self, replica: str, entries: Sequence[Entry]) -> None: ...


class Entrance:
    """Client of the gate for one replica.

    unbooked: future that is done when all bills so far are booked, None if there are none. Until then the gate is told
    of requests with limits of dollars as of some without answers under way, so that a new one counts them.
    closing: sessions of given-up requests that are being closed; they keep the requests' places until then.
    """

    def __init__(
        self,
        gate: RemoteGate,
        unbooked: Callable[[], asyncio.Future[None] | None],
        closing: Callable[[], Collection[asyncio.Task[Any]]] = tuple,
    ) -> None:
        self._gate, self._unbooked, self._closing = gate, unbooked, closing
        self._leaving: dict[asyncio.Task[None], int] = {}
        self._name = secrets.token_hex(8)
        self._entries: dict[int, Entry] = {}
        self._left = Outbox[int](lambda requests: self._gate.left(self._name, requests))
        self._telling: asyncio.Task[None] | None = None

    async def enter(self, entry: Entry, wanted: Sequence[RoutingRequest] = ()) -> Passage:
        """Return when the request may begin; it must then leave, once. Raises LimitReached. wanted: by its answers,
        for which the router then assigns in the same call.

        The call takes along which requests have left, so that they are no reason to refuse this one.
        """
        left = self._left.take()
        try:
            passage = await self._gate.enter(self._name, entry, left, wanted)
        except BaseException:  # it may have been waiting when it gave up, or never have come there
            for request in (*left, entry.request):
                self._left.add(request)
            raise
        self._entries[entry.request] = entry
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._keep_telling())
        return passage

    def leave(self, request: int, finished: bool = False) -> None:
        """Leave the gate with a request. finished: whether its sessions have ended, so that none is being closed."""
        if not finished and (closing := self._closing()):
            task = asyncio.get_running_loop().create_task(_ended(closing))
            self._leaving[task] = request
            task.add_done_callback(self._leave)
        else:
            self._say_left(request)

    def _leave(self, task: asyncio.Task[None]) -> None:
        if (request := self._leaving.pop(task, None)) is not None:
            self._say_left(request)

    def _say_left(self, request: int) -> None:
        entry, booked = self._entries.pop(request, None), self._unbooked()
        if entry is not None and entry.has_dollars and booked is not None and not booked.done():
            self._entries[request] = replace(entry, sessions=0)
            booked.add_done_callback(lambda _: self._entries.pop(request, None))
        self._left.add(request)

    def close(self) -> None:
        """Leave with all requests of this replica, which ends."""
        for task in list(self._leaving):
            self._leave(task)
        self._left.flush()
        if self._telling is not None:
            self._telling.cancel()

    async def _keep_telling(self) -> None:
        """Report the requests under way, as long as there are any."""
        while True:
            await asyncio.sleep(SIGN_S)
            if not self._entries:
                return
            self._gate.under_way(self._name, list(self._entries.values()))


async def _ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks, timeout=CLOSING_S)
