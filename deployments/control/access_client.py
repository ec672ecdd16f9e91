"""Client of the key service, for the front doors: the API and the gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ray.serve.handle import DeploymentHandle

from tandem.deployments.access.accounts import Statement, device_of
from tandem.deployments.access.client.bill_sender import BOOKED_S, BillSender
from tandem.deployments.access.client.caller_cache import Callers
from tandem.deployments.access.kept.streams import Outcome, StreamCopy, StreamNews
from tandem.deployments.access.keys import Key, Role
from tandem.deployments.access.teams import TeamStatement
from tandem.deployments.access.usage import Usage, UsageQuery, day_of
from tandem.deployments.config.settings import LimitSettings
from tandem.deployments.control.access import Access
from tandem.deployments.control.calls import HandleClient
from tandem.deployments.control.router_client import RouterClient
from tandem.deployments.learning.report import Report
from tandem.deployments.request.job import NoSuchDevice

COPY_S = 1.0
"""Longest that a client waits for events because their copy is not kept yet."""


class AccessClient(HandleClient):
    """Client of the key service, an `AdminBackend`, `ResponseStore` and `StreamStore` of `app.api.http.backend`. Raises
    Unavailable without an answer in time.

    callers: who has which key.
    """

    def __init__(self, access: DeploymentHandle, router: RouterClient, limits: LimitSettings) -> None:
        super().__init__(access)
        self._router, self._soon_s = router, limits.open_s
        self.callers = Callers(lambda hashed: self.ask(limits.assign_s, Access.caller, hashed))
        self._bills = BillSender(lambda batch: self.ask(limits.assign_s, Access.charge, batch))

    async def keep(self, account: str, id: str, body: bytes) -> bool:
        """Keep a response for a while; return False if it is too large, or none is kept."""
        return await self.ask(self._soon_s, Access.keep_response, account, id, body)

    async def get(self, account: str, id: str) -> bytes | None:
        """Return a response that is still kept."""
        return await self.ask(self._soon_s, Access.kept_response, account, id)

    async def drop(self, account: str, id: str) -> bool:
        """Forget a response; return whether it was there."""
        return await self.ask(self._soon_s, Access.drop_response, account, id)

    async def take(self, owner: str, news: Sequence[StreamNews]) -> list[Outcome]:
        """Keep news of resumable streams. Without an answer soon the streams go on without copies."""
        return await self.ask(COPY_S, Access.keep_streams, owner, news)

    async def claim(self, account: str, id: str, owner: str) -> StreamCopy | None:
        """Return the copy of a stream to its new owner; None if there is none."""
        return await self.ask(self._soon_s, Access.claim_stream, account, id, owner)

    async def forget(self, streams: Sequence[tuple[str, str]]) -> None:
        """Forget copies of streams, by account and id."""
        await self.ask(COPY_S, Access.forget_streams, streams)

    def report(self, report: Report) -> None:
        """Have an answer's bill booked, `booked` returns when it is, and the router told then."""
        self._bills.add(
            report.charge(day_of(time.time())),
            lambda standing: self._router.report(replace(report, standing=standing)),
        )

    def unbooked(self) -> asyncio.Future[None] | None:
        """Return a future that is done when all bills so far are booked; None if there were none."""
        return self._bills.last

    async def booked(self) -> None:
        """Return when all bills so far are booked, or have waited for the key service too long."""
        await self._bills.booked(BOOKED_S)

    async def close(self) -> None:
        """Return when all bills are booked, or cannot be."""
        await self._bills.booked(self._soon_s)
        self._bills.close()

    async def account(self, key: str) -> Statement:
        """Return that account's usage and terms, without opening it."""
        await self.booked()
        return await self._complete(key, await self.ask(self._soon_s, Access.account, key))

    async def usage(self, query: UsageQuery) -> list[Usage]:
        """Return usage, this process's answers included."""
        await self.booked()
        return await self.ask(self._soon_s, Access.usage, query)

    async def settle(self, key: str, changes: Mapping[str, Any]) -> Statement:
        """Change an account's terms. Raises NoSuchDevice, KeyRefused, LedgerError, as the methods below."""
        if (device := device_of(key)) is not None:
            snapshot = await self._router.snapshot()
            if device not in snapshot.devices and device not in snapshot.awaited:
                raise NoSuchDevice(f"no device {device!r} is registered")
        with self._changing():
            return await self._complete(key, await self.ask(self._soon_s, Access.settle, key, changes))

    async def keys(self) -> list[Key]:
        return await self.ask(self._soon_s, Access.keys)

    async def make_key(self, name: str, role: Role, changes: Mapping[str, Any], team: str) -> tuple[Key, str]:
        with self._changing():
            return await self.ask(self._soon_s, Access.make_key, name, role, changes, team)

    async def rotate_key(self, id: str, grace_s: float) -> tuple[Key, str]:
        with self._changing():
            return await self.ask(self._soon_s, Access.rotate_key, id, grace_s)

    async def change_key(
        self, id: str, name: str | None, role: Role | None, changes: Mapping[str, Any], team: str | None
    ) -> Key:
        with self._changing():
            return await self.ask(self._soon_s, Access.change_key, id, name, role, changes, team)

    async def revoke_key(self, id: str) -> Key:
        with self._changing():
            return await self.ask(self._soon_s, Access.revoke_key, id)

    async def teams(self) -> list[TeamStatement]:
        await self.booked()
        return await self.ask(self._soon_s, Access.teams)

    async def make_team(self, name: str, changes: Mapping[str, Any]) -> TeamStatement:
        with self._changing():
            return await self.ask(self._soon_s, Access.make_team, name, changes)

    async def change_team(self, name: str, changes: Mapping[str, Any]) -> TeamStatement:
        with self._changing():
            return await self.ask(self._soon_s, Access.change_team, name, changes)

    async def remove_team(self, name: str) -> None:
        with self._changing():
            await self.ask(self._soon_s, Access.remove_team, name)

    async def _complete(self, key: str, statement: Statement) -> Statement:
        return replace(statement, spent=await self._router.spent(key))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Have a change hold here at once, and elsewhere soon."""
        try:
            yield
        finally:
            self.callers.forget()
