"""Injects faults into a world whose router and scheduler may be lost.

While there is no router, front doors assign requests themselves, by the live stand-in. One stands for all of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tandem.deployments.admission.controller import LEARNING_S
from tandem.deployments.learning.report import Report
from tandem.deployments.modes.race.router import RaceBriefing
from tandem.deployments.request.assignment import Assignment, EndpointInfo, Present, RoutingRequest
from tandem.deployments.request.job import Delta, Job
from tandem.deployments.request.pools import MIDDLE, VERIFIER
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.models import ModelRoutings, RoutedModel
from tandem.deployments.routing.routing import Routing
from tandem.deployments.routing.stand_in import RouterStandIn
from tandem.engine.core.engine import CoreEngine
from tandem.policies.estimators.overdue import HUNG_S
from tandem.simulator.chaos.house import House
from tandem.simulator.chaos.process import Process, within
from tandem.simulator.chaos.scenario import Fault
from tandem.simulator.config.config import Config
from tandem.simulator.engines.engine import TimedDriver
from tandem.simulator.world.server import SimulatedServer
from tandem.simulator.world.world import REFRESH_S, World

RESTART_S = 8.0  # until a dead replica's successor answers, as measured with Ray Serve
CHECK_S = 1.0  # between two checks of a replica's health
OTHERS = 9  # processes that may slow a server down


class FragileWorld(World):
    """A world whose router and scheduler may be lost.

    deaf_until_s: until when the scheduler is down, so that nothing is listed.
    limits: by raced request, what the limited endpoint may take in while the other one has not failed.
    before: by request, the most tokens that an endpoint took in before it was a race.
    allowed: tokens that the budget allows all races together, as each router has planned them.
    losses: lost endpoints, and when.
    hung: replicas whose engines hang, though they answer.
    stand_in: assigns requests while there is no router.
    outages: times without a verifier that new sessions can reach, or without scheduler, or where requests have keys
        without router or key service: from when until when.
    """

    def __init__(
        self, config: Config, tenants: Sequence[Mapping[str, Any]] = (), folder: Path = Path()
    ) -> None:
        """tenants: limits of the keys that requests come with; folder: of their ledger."""
        self.deaf_until_s = 0.0
        self.limits: dict[int, float] = {}
        self.before = Counter[int]()
        self.allowed = 0.0
        self.losses: list[tuple[EndpointInfo, float]] = []
        self.hung: set[SimulatedServer] = set()
        self.outages: list[tuple[float, float]] = []
        self._out_since_s: float | None = None
        self._planned: set[tuple[object, int]] = set()  # by router and request
        self.house: House | None = None
        self._router, self._soon_s = Process(), config.limits.open_s
        super().__init__(config)
        self.stand_in = RouterStandIn(
            lambda: ModelRoutings([RoutedModel("", "", 0, 0)], lambda _: self.new_routing()),
            self._follow,
            partial(self._router.ask, _sign),
        )
        if tenants:
            self.house = House(self.loop, tenants, self._router, self.stand_in, lambda: self.routing, folder)

    def run(self, job: Job, device: int) -> AsyncGenerator[Delta, None]:
        executor = self.executor(job.mode, device)
        if self.house is None or executor is not self._cloud:
            return executor.run(job)
        return self.house.run(job, executor.run)

    def answered(self, report: Report) -> None:
        super().answered(report)
        if self.house is not None and report.account:
            self.house.answered(report)

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        made: list[tuple[Routing, Assignment]] = []

        async def ask() -> Assignment:
            made.append((self.routing, assignment := await super(FragileWorld, self).assign(wanted)))
            return assignment

        assignment = await self.stand_in.assign(wanted, self._router.ask(ask))
        router = next((router for router, its in made if its is assignment), None)
        if router is None:  # by the stand-in
            self.assigned(wanted, assignment)
        self._note_plan(router or self.stand_in, wanted, assignment)
        return assignment

    async def _follow(self, see: Callable[[Snapshot], object]) -> None:
        """Pass on what the scheduler says is up, if there is one."""
        version = 0
        while True:
            if self.loop.time() >= self.deaf_until_s:
                snapshot = self._directory.since(version)
                version = snapshot.version
                see(snapshot)
            await asyncio.sleep(REFRESH_S)

    async def reconsider(self, wanted: RoutingRequest, present: Present) -> Assignment | None:
        async def ask() -> Assignment | None:
            limited = self.house is not None and self.house.limits_usd(wanted.request)
            return None if limited else await super(FragileWorld, self).reconsider(wanted, present)

        return await within(self._soon_s, self._router.ask(ask), "the router")

    async def ask(self, mode: str, question: object) -> Any:
        return await self._router.ask(partial(super().ask, mode, question))

    async def _replaces(self, endpoint: EndpointInfo) -> bool:
        return await within(
            self._soon_s, self._router.ask(partial(super()._replaces, endpoint)), "the router"
        )

    def tell(self, mode: str, said: object) -> None:
        """Tell the router, if there is one: what its predecessor knew is gone."""
        if self._router.up:
            super().tell(mode, said)

    def _note_plan(self, router: object, wanted: RoutingRequest, assignment: Assignment) -> None:
        plan = router, wanted.request
        if not isinstance(assignment.briefing, RaceBriefing):
            if wanted.request not in self.limits:
                self.before[wanted.request] += wanted.prompt_tokens + wanted.sent
        elif plan not in self._planned:
            self._planned.add(plan)
            self.limits.setdefault(wanted.request, assignment.briefing.limit)
            self.allowed += self.config.accounts.budget * wanted.prompt_tokens

    def _lost(self, gone: EndpointInfo) -> None:
        self.losses.append((gone, self.loop.time()))
        super()._lost(gone)

    def report(self, reports: Sequence[Report]) -> None:
        """Report what answers have taught; lost while there is no router."""
        if self._router.up:
            super().report(reports)

    @property
    def _locked(self) -> bool:
        """Whether requests with keys wait, as neither the keys nor the requests under way are known."""
        return self.house is not None and (self.house.locked or not self._router.up)

    @property
    def _out(self) -> bool:
        verifiers = [
            s for s in self.servers
            if s.endpoint.engine == VERIFIER and s.up and s.alive and s not in self.hung
        ]  # fmt: skip
        reached = any(s.path is None or s.path.is_clear for s in verifiers)
        return not reached or self.loop.time() < self.deaf_until_s or self._locked

    def look(self) -> None:
        """Record whether an outage has begun or ended."""
        now_s, since_s, out = self.loop.time(), self._out_since_s, self._out
        if out and since_s is None:
            self._out_since_s = now_s
        elif not out and since_s is not None:
            self.outages.append((since_s, now_s))
            self._out_since_s = None

    def out_s(self, begin_s: float, end_s: float) -> float:
        """Return the seconds of outages between two times."""
        outages = [*self.outages, *([] if self._out_since_s is None else [(self._out_since_s, end_s)])]
        return sum(max(0.0, min(end, end_s) - max(begin, begin_s)) for begin, end in outages)

    def refresh(self) -> None:
        """Refresh the listing; later, while there is no scheduler."""
        self.look()
        if self.loop.time() < self.deaf_until_s:
            self.refresh_soon()
        else:
            super().refresh()

    def lose_router(self) -> bool:
        """Kill the router and fail its pending calls; False if there was none."""
        killed = self._router.kill()
        self.look()
        return killed

    def replace_router(self) -> None:
        """Start a router with an empty state."""
        self.restart_router()
        if self.house is not None:
            self.house.new_gate()
            self.loop.call_later(LEARNING_S, self.look)
        self._router.replace()
        self.refresh()


class Saboteur:
    """Injects faults, until the end. done: faults that happened. A device has one at a time."""

    def __init__(self, world: FragileWorld) -> None:
        self.done: list[Fault] = []
        self._world, self._over, self._silent = world, False, False
        self._hit: set[int] = set()  # devices with a fault now
        self._running: dict[asyncio.Task[None], None] = {}

    def begin(self, fault: Fault) -> None:
        """Begin a fault; it is repaired after its time."""
        acts: dict[str, Callable[[Fault], Awaitable[None]]] = {
            "kill": self._kill,
            "restart": self._leave,
            "cut": self._cut,
            "stall": self._stall,
            "late": self._late,
            "router": self._router,
            "scheduler": self._scheduler,
            "drain": self._drain,
            "leave": self._leave,
            "drafter": self._drafter,
            "silence": self._silence,
            "away": self._away,
            "access": self._access,
            "takeover": self._takeover,
            "hang": self._hang,
            "middle": self._middle,
            "frozen": self._frozen,
        }
        if self._over:
            return
        self.done.append(fault)
        task = self._world.loop.create_task(_run(acts[fault.kind](fault)))
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))

    async def end(self) -> None:
        """Inject no further faults; return when all are repaired."""
        self._over = True
        while self._running:
            await asyncio.wait(self._running)  # yields to the loop even if all are done

    async def _kill(self, fault: Fault) -> None:
        if (server := self._victim(fault)) is not None:
            await self._replace(server)

    async def _hang(self, fault: Fault) -> None:
        """Have a verifier's step never end, while its process answers; it is replaced as Serve does that. One at a
        time: others must be left. (How long an engine's first step should take is unknown.)"""
        world = self._world
        among = [] if world.hung else [s for s in world.servers if s.endpoint.engine == VERIFIER]
        seen = [s for s in among if isinstance(s.core, CoreEngine) and s.core.counters.steps]
        if (server := self._victim(fault, seen)) is None:
            return
        assert isinstance(server.core, CoreEngine)
        assert isinstance(server.core._driver, TimedDriver)
        server.core._driver.hang()
        world.hung.add(server)
        world.look()
        while server.core.overdue_s <= HUNG_S and not self._over:  # noqa: ASYNC110 (as live)
            await asyncio.sleep(CHECK_S)
        if server.up:
            await self._replace(server)
        world.hung.remove(server)
        world.look()

    async def _replace(self, server: SimulatedServer) -> None:
        """Kill a replica, and the drafter beside it; another one comes."""
        world = self._world
        beside = [s for s in world.drafters if s.up and s.hardware is server.hardware]
        for each in (server, *beside):
            await each.kill()
        world.look()
        world.refresh_soon()
        await asyncio.sleep(RESTART_S)
        world.add_server(server.group)
        world.refresh()

    async def _drain(self, fault: Fault) -> None:
        """Start a new replica, then drain one: it takes no new sessions, and ends when its sessions have, or after its
        time."""
        world = self._world
        if (server := self._victim(fault)) is None:
            return
        world.add_server(server.group)
        leaving = [server, *(s for s in world.drafters if s.up and s.hardware is server.hardware)]
        for each in leaving:
            each.up = False
        world.refresh()
        until_s = world.loop.time() + fault.seconds
        while any(s.open_sessions for s in leaving) and world.loop.time() < until_s:  # noqa: ASYNC110 (as live)
            await asyncio.sleep(0.05)
        for each in leaving:
            await each.kill()

    def _victim(self, fault: Fault, among: Sequence[SimulatedServer] | None = None) -> SimulatedServer | None:
        """Return one of the running replicas (all verifiers); None, and the fault does not happen, if there is none."""
        if up := [s for s in (self._world.servers if among is None else among) if s.up]:
            return up[fault.target % len(up)]
        self.done.remove(fault)
        return None

    def _hits(self, fault: Fault) -> bool:
        """Return whether the device has no fault yet; otherwise this one does not happen."""
        if fault.target in self._hit:
            self.done.remove(fault)
            return False
        self._hit.add(fault.target)
        return True

    async def _drafter(self, fault: Fault) -> None:
        """Kill all drafters; after a while each is replaced beside its server, if that is still up."""
        world = self._world
        if self._victim(fault, world.drafters) is None:
            return
        killed = [drafter for drafter in world.drafters if drafter.up]
        for drafter in killed:
            await drafter.kill()
        world.refresh_soon()
        await asyncio.sleep(max(RESTART_S, fault.seconds))
        for drafter in killed:
            if any(s.up and s.hardware is drafter.hardware for s in world.servers):
                world.add_drafter(drafter.group, drafter.hardware)
        world.refresh()

    async def _middle(self, fault: Fault) -> None:
        """Kill a middle that computes for a device."""
        if (server := self._victim(fault, self._middles())) is not None:
            await self._replace(server)

    async def _frozen(self, fault: Fault) -> None:
        """Stop a middle that computes for a device, as a stopped process: its connections stay, and say nothing."""
        await self._silence(fault, self._middles())

    def _middles(self) -> list[SimulatedServer]:
        return [s for s in self._world.servers if s.endpoint.engine == MIDDLE and s.open_sessions]

    async def _silence(self, fault: Fault, servers: Sequence[SimulatedServer] | None = None) -> None:
        """Cut a replica (of all, or of these) off from all others, without any error. One at a time: others must be
        left."""
        servers = self._world.servers if servers is None else servers
        among = [] if self._silent else [s for s in servers if s.path is not None]
        if (server := self._victim(fault, among)) is None:
            return
        assert server.path is not None
        self._silent = True
        server.path.stall()
        self._world.look()
        await asyncio.sleep(fault.seconds)
        server.path.heal()
        self._world.look()
        self._silent = False

    async def _leave(self, fault: Fault) -> None:
        """Kill the device's process; another one replaces it, at once or after a while."""
        if self._hits(fault):
            await self._world.devices.leave(fault.target)
            await asyncio.sleep(fault.seconds if fault.kind == "leave" else 0.0)
            self._world.devices.come_back(fault.target)
            self._world.refresh()
            self._hit.remove(fault.target)

    async def _cut(self, fault: Fault) -> None:
        if self._hits(fault):
            there = self._world.devices[fault.target]
            for path in (there.path, there.uplink):
                path.cut()
            await asyncio.sleep(fault.seconds)
            for path in (there.path, there.uplink):
                path.heal()
            self._hit.remove(fault.target)

    async def _away(self, fault: Fault) -> None:
        """Break the device's connection while it drives an answer in mode split; it is resumed in time."""
        there = self._world.devices[fault.target]
        if there.outer is None or not there.outer.sessions:
            self.done.remove(fault)
        elif self._hits(fault):
            for path in (there.path, there.uplink):
                path.part()
            await asyncio.sleep(fault.seconds)
            for path in (there.path, there.uplink):
                path.heal()
            self._hit.remove(fault.target)

    async def _stall(self, fault: Fault) -> None:
        if self._hits(fault):
            there = self._world.devices[fault.target]
            for path in (there.path, there.uplink):
                path.stall()
            await asyncio.sleep(fault.seconds)
            for path in (there.path, there.uplink):
                path.heal()
            self._hit.remove(fault.target)

    async def _late(self, fault: Fault) -> None:
        """Load a server with other processes for a while."""
        if (server := self._victim(fault)) is not None:
            for _ in range(OTHERS):
                server.hardware.compute(fault.seconds / 4 / OTHERS, lambda: None)

    async def _router(self, fault: Fault) -> None:
        """Kill the router; requests ask its successor, whose state is empty."""
        if not self._world.lose_router():
            self.done.remove(fault)
            return
        await asyncio.sleep(fault.seconds / 4)
        self._world.replace_router()

    async def _access(self, fault: Fault) -> None:
        """Kill the key service, at once or when it has written a bill; its successor opens the same ledger."""
        house = self._world.house
        killed = house is not None and (
            house.kill_access() if fault.target % 2 else await house.kill_access_after_a_write(fault.seconds)
        )
        if house is None or not killed:
            self.done.remove(fault)
            return
        self._world.look()
        await asyncio.sleep(fault.seconds / 4)
        await house.replace_access()
        self._world.look()

    async def _takeover(self, fault: Fault) -> None:
        """Replace the key service by one that opens the ledger before the old one ends."""
        house = self._world.house
        if house is None or not await house.hand_over_access(fault.seconds / 4):
            self.done.remove(fault)

    async def _scheduler(self, fault: Fault) -> None:
        """Stop the directory's updates."""
        self._world.deaf_until_s = self._world.loop.time() + fault.seconds / 4
        self._world.look()


async def _sign() -> None:
    """Answer, as a router does that is there."""


async def _run(what: Awaitable[None]) -> None:
    await what
