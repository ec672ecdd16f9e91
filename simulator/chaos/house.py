"""Keys, the gate and the ledger in front of a simulated system: the live code of all three, in virtual time.

The gate belongs to the router's process, and dies with it. The key service is a process of its own, over a ledger on
disk. Each replica of the API has an entrance, a cache of callers and bills on their way.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tandem.deployments.access.accounts import Accounts
from tandem.deployments.access.client.bill_sender import BOOKED_S, BillSender
from tandem.deployments.access.client.caller_cache import Callers
from tandem.deployments.access.key_service import KeyService
from tandem.deployments.access.keys import Caller, Key, Role, digest
from tandem.deployments.access.quota import Standing
from tandem.deployments.access.store import BillBatch, LeaseLost
from tandem.deployments.access.usage import UsageQuery, day_of
from tandem.deployments.admission.client import Entrance
from tandem.deployments.admission.controller import LEARNING_S, Gate
from tandem.deployments.admission.entry import Entry, LimitReached, Passage, QuotaExceeded, Room
from tandem.deployments.config.settings import GateSettings, LedgerSettings, LimitSettings
from tandem.deployments.learning.report import Report
from tandem.deployments.outbox import DELAY_S
from tandem.deployments.request.assignment import RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.request.job import Delta, Job
from tandem.deployments.routing.routing import Routing
from tandem.deployments.routing.stand_in import RouterStandIn
from tandem.simulator.chaos.process import Process, within

NOON_S = 1_767_268_800.0
"""Begin of a run, seconds since the epoch: noon, so that it ends on the same day."""
DOORS = 2
"""Replicas of the API."""
PLACES = 64
"""Requests that a verifier has room for."""
AGAIN_S = 0.1
"""Pause before a call is repeated that another key service has to answer."""
ACCESS = "access"
REFUSALS = (LimitReached.code, QuotaExceeded.code)


class _Door:
    """One replica of the API."""

    def __init__(self, house: House) -> None:
        self.bills = BillSender(house.charge)
        self.entrance = Entrance(house, lambda: self.bills.last)
        self.callers = Callers(house.caller, house.loop.time)


class House:
    """Front doors, the gate and the key service.

    tenants: limits of each key.
    routing: of the router that is up.
    router: its process, in which the gate is.
    stand_in: lets requests in that have no limits, while there is no router.
    access: the process of the key service.
    most: by key, the most answers that were under way at once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tenants: Sequence[Mapping[str, Any]],
        router: Process,
        stand_in: RouterStandIn,
        routing: Callable[[], Routing],
        folder: Path,
    ) -> None:
        self.loop, self.router, self.access = loop, router, Process()
        self._tenants, self._routing, self._path = tenants, routing, folder / "ledger.sqlite"
        self._stand_in = stand_in
        self._limits = LimitSettings()
        self._secrets: list[str] = []
        self._keys: list[Key] = []
        self._reserved_usd: dict[int, float] = {}  # by job
        self._due: dict[str, Bill] = {}  # by account
        self._beyond_usd: dict[str, float] = {}  # by account, of answers that cost more than was reserved
        self._at_once, self.most = Counter[str](), Counter[str]()
        self._handing_over = False
        self._ambush: asyncio.Future[None] | None = None
        self.new_gate()
        self._doors = [_Door(self) for _ in range(DOORS)]

    async def open(self) -> None:
        """Open the ledger, and make the keys."""
        self._service = await self._opened()
        await self._service.make("operator", Role.OPERATOR, {})
        for number, limits in enumerate(self._tenants):
            key, secret = await self._service.make(f"tenant {number}", Role.USER, limits)
            self._keys.append(key)
            self._secrets.append(digest(secret))

    # -- requests ---------------------------------------------------------------------------------------

    async def run(
        self, job: Job, answer: Callable[[Job], AsyncGenerator[Delta, None]]
    ) -> AsyncGenerator[Delta, None]:
        """Yield an answer as a replica of the API does: behind the gate, the end once its bill is on disk."""
        door = self._door(job.id)
        caller = await door.callers.of(self._secrets[job.id % len(self._secrets)])
        assert caller is not None
        job = replace(job, account=caller.account)
        room = Room(job.id, len(job.prompt), job.sampling.max_tokens)
        entry = Entry.of(caller, [room], room.prompt, job.model)
        self._reserved_usd[job.id] = self._routing().dearest().of(room.prompt + room.output, room.output)
        await door.entrance.enter(entry)
        self._at_once[caller.account] += 1
        self.most[caller.account] = max(self.most[caller.account], self._at_once[caller.account])
        last = None
        try:
            async with aclosing(answer(job)) as deltas:
                async for delta in deltas:
                    if delta.finish:
                        last = delta
                    else:
                        yield delta
        finally:
            self._at_once[caller.account] -= 1
            door.entrance.leave(job.id, finished=last is not None)
        if last is not None:
            await door.bills.booked(BOOKED_S)
            yield last

    def answered(self, report: Report) -> None:
        """Have an answer's bill booked."""
        bill, account = report.bill, report.account
        self._due.setdefault(account, Bill()).add(bill)
        beyond_usd = max(0.0, bill.server_usd - self._reserved_usd.get(report.request, 0.0))
        self._beyond_usd[account] = self._beyond_usd.get(account, 0.0) + beyond_usd
        charge = report.charge(day_of(self._now_s()))
        self._door(report.request).bills.add(charge, partial(self._used, report))

    def _door(self, job: int) -> _Door:
        return self._doors[job % len(self._doors)]

    @property
    def locked(self) -> bool:
        """Whether there is no key service, or a gate that does not know yet what its predecessor let in."""
        return not self.access.up or self.loop.time() < self._learned_s

    # -- the gate, in the router's process --------------------------------------------------------------

    def new_gate(self) -> None:
        """Replace the gate by one that knows of nothing."""
        self._learned_s = self.loop.time() + LEARNING_S
        self._gate = Gate(
            {"": lambda: PLACES * max(1, len(self._routing().assigner.replicas("verifier")))},
            GateSettings(),
            self.loop.time,
            lambda _: self._routing().dearest(),
            self._standing,
        )

    async def enter(
        self, replica: str, entry: Entry, left: Sequence[int], wanted: Sequence[RoutingRequest]
    ) -> Passage:
        """Ask the gate, as RemoteGate."""

        async def ask() -> Passage:
            for request in left:
                self._gate.leave(replica, request)
            return await self._gate.enter(replica, entry)

        asked = self.router.ask(ask)
        return await (asked if entry.any_limit else self._stand_in.answer(asked, _let_in))

    def limits_usd(self, request: int) -> bool:
        """Return whether dollars are reserved for an answer."""
        return self._gate.quotas.limits_usd(request)

    def left(self, replica: str, requests: Sequence[int]) -> None:
        """Tell the gate, as RemoteGate, if there is one."""
        if self.router.up:
            for request in requests:
                self._gate.leave(replica, request)

    def under_way(self, replica: str, entries: Sequence[Entry]) -> None:
        """Tell the gate, as RemoteGate, if there is one."""
        if self.router.up:
            self._gate.under_way(replica, {entry.request: entry for entry in entries})

    def _used(self, report: Report, standing: Standing) -> None:
        """Tell the gate soon, if there is one, what an answer has used."""
        self.loop.call_later(DELAY_S, self._tell_used, report, standing)

    def _tell_used(self, report: Report, standing: Standing) -> None:
        if self.router.up:
            self._gate.quotas.used(report.account, report.tokens, report.request, standing)

    # -- the key service --------------------------------------------------------------------------------

    async def caller(self, hashed: str | None) -> Caller | None:
        """Ask the key service who has a key."""

        async def ask() -> Caller | None:
            return self._service.caller(hashed)

        return await within(self._limits.assign_s, self.access.ask(ask), ACCESS)

    async def _standing(self, account: str) -> Standing:
        async def ask() -> Standing:
            return self._service.standing(account)

        return await self.access.ask(ask)

    async def charge(self, batch: BillBatch) -> dict[str, Standing]:
        """Have the key service book bills."""

        async def ask() -> dict[str, Standing]:
            booked = await self._service.booked(batch)
            if self._ambush is not None and not self._ambush.done() and self.kill_access():
                self._ambush.set_result(None)
                await asyncio.sleep(0)  # it does not come to say so
            return booked

        while True:
            try:
                return await within(self._limits.assign_s, self.access.ask(ask), ACCESS)
            except LeaseLost:  # another one writes by now
                await asyncio.sleep(AGAIN_S)

    def kill_access(self) -> bool:
        """End the key service as a killed process ends; return False if there is none, or two."""
        if self._handing_over or not self.access.kill():
            return False
        _kill(self._service)
        return True

    async def kill_access_after_a_write(self, within_s: float) -> bool:
        """End the key service after its next write, before it says so; return False if there was none in time."""
        self._ambush = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait({self._ambush}, timeout=within_s)
        self._ambush = None
        return bool(done)

    async def replace_access(self) -> None:
        """Start a key service in place of the one that was killed."""
        self._service = await self._opened()
        self.access.replace()

    async def hand_over_access(self, seconds: float) -> bool:
        """Start a key service while the old one is there, which is asked for so many seconds more; return False if
        there is none, or two."""
        if self._handing_over or not self.access.up:
            return False
        self._handing_over = True
        successor = await self._opened()
        await asyncio.sleep(seconds)
        old, self._service = self._service, successor
        await old.close()
        self._handing_over = False
        return True

    async def _opened(self) -> KeyService:
        service = KeyService(LedgerSettings(path=self._path), Accounts(), self._now_s)
        await service.open()
        return service

    def _now_s(self) -> float:
        return NOON_S + self.loop.time()

    # -- promises ---------------------------------------------------------------------------------------

    async def close(self) -> list[str]:
        """Return when all bills are booked: broken promises, in words."""
        for door in self._doors:
            await door.bills.booked(2 * self._limits.assign_s)
            door.bills.close()
            door.entrance.close()
        broken = []
        booked = {
            usage.place[0]: usage.bill for usage in await self._service.usage(UsageQuery(by=("account",)))
        }
        for account in booked.keys() | self._due.keys():
            due, found = self._due.get(account, Bill()), booked.get(account, Bill())
            if due.requests != found.requests or abs(due.server_usd - found.server_usd) > 1e-9:
                broken.append(
                    f"bills of {found.requests} answers over {found.server_usd:.6f} dollars are booked, and "
                    f"{due.requests} over {due.server_usd:.6f} are due"
                )
        for key, limits in zip(self._keys, self._tenants, strict=True):
            usd, most = limits.get("usd"), limits.get("concurrent")
            spent = booked.get(key.id, Bill()).server_usd
            if usd is not None and spent > usd + self._beyond_usd.get(key.id, 0.0) + 1e-9:
                broken.append(f"a key with a limit of {usd:.6f} dollars has spent {spent:.6f}")
            if most is not None and self.most[key.id] > most:
                broken.append(f"a key has {self.most[key.id]} answers at once, and may have {most}")
        if under_way := self._gate.under_way_now:
            broken.append(f"{under_way} requests have not left the gate")
        await self._service.close()
        return broken


async def _let_in() -> Passage:
    return Passage()


def _kill(service: KeyService) -> None:
    for task in (service._watching, service._writing):
        if task is not None:
            task.cancel()
    service._ledger.close()
