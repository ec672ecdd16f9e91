"""The router: decides where a request goes, by policy, and learns from what becomes of it.

One for all replicas of the API. It follows the scheduler's snapshot, keeps what all requests have taught, counts them
for operators (`deployments.control.metrics`), and is the one who knows keys, terms and bills and writes them down
(`deployments.access.key_service`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from tandem.deployments.access.accounts import Accounts, Statement, device_of
from tandem.deployments.access.guard_note import GuardNote
from tandem.deployments.access.key_service import Treasury
from tandem.deployments.access.keys import Caller, Key, KeyRefused, Role
from tandem.deployments.access.store import LedgerError
from tandem.deployments.admission.controller import Entry, Gate, Passage
from tandem.deployments.calls import refuses
from tandem.deployments.config.reconfigure import Live, in_place
from tandem.deployments.config.settings import AccountSettings, GateSettings, LedgerSettings, RouterSettings
from tandem.deployments.control.metrics import Metrics, Observation
from tandem.deployments.control.scheduler_client import SchedulerClient
from tandem.deployments.learning.report import Report
from tandem.deployments.modes import AT_FRONT_DOORS
from tandem.deployments.modes.sections import of_modes, with_sections
from tandem.deployments.request.assignment import Assignment, RoutingRequest
from tandem.deployments.request.job import NoSuchDevice
from tandem.deployments.request.pools import VERIFIER
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.routing import Routing
from tandem.engine.base import EngineError

logger = logging.getLogger("ray.serve")

KEEP_S = 10.0
"""Interval at which changed measurements are written."""
TELL_S = 0.5
"""Interval of the reports of waiting requests to the scheduler."""
ANSWER_S = 5.0
"""The scheduler answers within that, or is not there."""
Ended = int | Report | Observation
"""A request that has left the admission controller, the report of an answer, or a request as the API saw it."""


@with_sections(mode for mode in AT_FRONT_DOORS.values() if mode.section)
class RouterLive(Live):
    """Settings that a router takes over while it runs, the modes' sections included.

    router: how requests find mode and endpoints.
    accounts: prices, and the terms of new accounts.
    gate: when all verifiers are full.
    """

    router: RouterSettings = RouterSettings()
    accounts: AccountSettings = AccountSettings()
    gate: GateSettings = GateSettings()


@refuses(EngineError, KeyRefused, LedgerError)
class Router:
    """Assigns endpoints to requests.

    model: by which clients ask for the verifiers' model.
    batch_limit: sessions that a verifier's step takes.
    places: sessions that a verifier holds at once.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self,
        scheduler: DeploymentHandle,
        model: str,
        live: RouterLive,
        ledger: LedgerSettings,
        batch_limit: int,
        places: int,
    ) -> None:
        self._scheduler, self._started = SchedulerClient(scheduler, ANSWER_S), live
        self._assigner = Assigner(live.router.collaboration.create(), live.router.routing.create, batch_limit)
        accounts = Accounts(live.accounts)
        note = GuardNote(serve.get_replica_context().app_name)
        self._treasury = Treasury(ledger, accounts, note=note)
        await self._treasury.open()
        self._routing = Routing(
            self._assigner, live.router, accounts, of_modes(live), may_dial_in=self._treasury.may_dial_in
        )
        for part in self._routing.modes.values():
            await part.recall()
        # Where the pool is empty, a first replica's places: whoever waits for it is not held back before.
        self._gate = Gate(lambda: max(1, self._assigner.count(VERIFIER)) * places, live.gate)
        self._metrics = Metrics(model, lambda: self._assigner.snapshot, lambda: self._gate.waiting)
        loop = asyncio.get_running_loop()
        self._following = loop.create_task(self._follow())
        self._keeping = loop.create_task(self._keep())
        self._telling = loop.create_task(self._tell_what_waits())

    def reconfigure(self, config: dict[str, Any]) -> None:
        """Serve's `user_config`, as RouterLive."""
        if (now := in_place(self._started, config)) is None:
            return
        self._assigner.follow(now.router.collaboration.create(), now.router.routing.create)
        self._routing.settings, self._gate.settings = now.router, now.gate
        self._routing.accounts.follow(now.accounts)
        for name, settings in of_modes(now).items():
            self._routing.modes[name].follow(settings)

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        """Mode and endpoints for a request; raises as Routing.assign."""
        return await self._routing.assign(wanted)

    async def ask_mode(self, mode: str, question: object) -> Any:
        """Put a request's question to its mode's part, see Routing.ask."""
        return await self._routing.ask(mode, question)

    async def tell_mode(self, mode: str, said: object) -> None:
        """Tell a mode's part what a request has to say, see Routing.tell."""
        self._routing.tell(mode, said)

    async def over(self, replica: str, ended: Sequence[Ended]) -> None:
        """Take in what a front door says of requests that are over."""
        for each in ended:
            match each:
                case int():
                    self._gate.leave(replica, each)
                case Observation():
                    self._metrics.observe(each)
                case Report():
                    self._learn(each)
        self._treasury.charge([(r.account, r.device, r.bill) for r in ended if isinstance(r, Report)])

    def _learn(self, report: Report) -> None:
        self._gate.used(report.account, report.tokens)
        try:
            self._routing.learn(report)
        except Exception:  # a bug in one mode's learning must not cost the others' reports
            logger.exception("cannot learn from a report")

    async def exposition(self, openmetrics: bool) -> tuple[bytes, str]:
        """Return the metrics, see Metrics.exposition."""
        return self._metrics.exposition(openmetrics)

    async def caller(self, hashed: str | None) -> Caller | None:
        """Return a key's caller, see Treasury.caller."""
        return self._treasury.caller(hashed)

    async def enter(self, replica: str, entry: Entry, left: Sequence[int]) -> Passage:
        """Return when a request may begin; raises as Gate.enter. left: requests that are over."""
        for request in left:
            self._gate.leave(replica, request)
        return await self._gate.enter(replica, entry, self._treasury.terms(entry.account))

    async def under_way(self, replica: str, entries: Sequence[Entry]) -> None:
        """Record all requests that a replica of the API has under way."""
        self._gate.under_way(replica, {entry.request: entry for entry in entries})

    async def account(self, key: str) -> Statement:
        """The account of that key."""
        return self._routing.statement(key)

    async def settle(self, key: str, changes: Mapping[str, Any]) -> Statement:
        """Change an account's limits and return its usage; raises NoSuchDevice, and as Treasury.settle."""
        device = device_of(key)
        snapshot = self._assigner.snapshot
        if device is not None and device not in snapshot.devices and device not in snapshot.awaited:
            raise NoSuchDevice(f"no device {device!r} is registered")
        await self._treasury.settle(key, changes)
        return self._routing.statement(key)

    async def keys(self) -> list[Key]:
        """All of them, the oldest first."""
        return self._treasury.keys()

    async def make_key(self, name: str, role: Role, changes: Mapping[str, Any]) -> tuple[Key, str]:
        """A new one and its secret. Raises KeyRefused."""
        return await self._treasury.make(name, role, changes)

    async def rotate_key(self, id: str, grace_s: float) -> tuple[Key, str]:
        """Return a key with a new secret; the old one stays valid for `grace_s`. Raises KeyRefused."""
        return await self._treasury.rotate(id, grace_s)

    async def change_key(
        self, id: str, name: str | None, role: Role | None, changes: Mapping[str, Any]
    ) -> Key:
        """Set what is not None. Raises KeyRefused."""
        return await self._treasury.change(id, name, role, changes)

    async def revoke_key(self, id: str) -> Key:
        """Revoke a key. Raises KeyRefused."""
        return await self._treasury.revoke(id)

    async def lost(self, name: str, address: str) -> None:
        """Record that a device did not answer."""
        self._scheduler.lost(name, address)

    async def snapshot(self, version: int = 0, devices: bool = True) -> Snapshot:
        """Return a snapshot, see Routing.snapshot."""
        return await self._routing.snapshot(version, devices)

    async def _follow(self) -> None:
        while True:
            try:
                snapshot = await self._scheduler.snapshot(self._assigner.version)
            except Exception as error:  # the scheduler restarts: go on with what is known
                logger.warning("no news from the scheduler: %s", type(error).__name__)
                await asyncio.sleep(0.5)
                continue
            self._routing.see(snapshot)

    async def _tell_what_waits(self) -> None:
        """Report waiting requests to the scheduler: pools grow by them, also from no replica."""
        told = True  # perhaps by a predecessor
        while True:
            await asyncio.sleep(TELL_S)
            waiting = self._routing.take_waiting()
            waiting[VERIFIER] += self._gate.waiting
            if told or any(waiting.values()):
                self._scheduler.waiting(dict(waiting))
            told = any(waiting.values())

    async def _keep(self) -> None:
        """Save the modes' learned state regularly, if a file is configured."""
        while True:
            await asyncio.sleep(KEEP_S)
            for part in self._routing.modes.values():
                await part.keep()

    async def check_health(self) -> None:
        """Serve restarts the router when one of its loops has ended."""
        for task in (self._following, self._keeping, self._telling):
            if task.done():
                raise RuntimeError(f"a loop ended: {task}")

    async def __del__(self) -> None:
        self._following.cancel()
        self._keeping.cancel()
        self._telling.cancel()
        await self._treasury.close()
