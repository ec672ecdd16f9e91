"""Makes faults happen, in a world whose router and scheduler may be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from tandem.deployments.learning.report import Report
from tandem.deployments.modes.race.router import RaceBriefing
from tandem.deployments.request.assignment import Assignment, RoutingRequest
from tandem.policies.race.dispatch import NEVER, Side
from tandem.simulator.chaos.scenario import Fault
from tandem.simulator.config.config import Config
from tandem.simulator.world.server import Server
from tandem.simulator.world.world import World

T = TypeVar("T")

RESTART_S = 8.0  # a dead replica's successor answers after so long, as measured with Ray Serve
OTHERS = 9  # processes that may slow a server down


class FragileWorld(World):
    """A world whose router and scheduler may be lost.

    deaf_until_s: the scheduler is not there until then, and nothing is listed.
    plans: by raced request, whether the endpoint that the budget limits was to take part.
    """

    def __init__(self, config: Config) -> None:
        self.deaf_until_s = 0.0
        self.plans: dict[int, bool] = {}
        self._router_back: asyncio.Future[None] | None = None  # None: it is there
        self._asking: dict[asyncio.Task[Any], None] = {}
        super().__init__(config)

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        assignment = await self._ask(partial(super().assign, wanted))
        self._note_plan(wanted.request, assignment)
        return assignment

    async def ask(self, mode: str, question: object) -> Any:
        return await self._ask(partial(super().ask, mode, question))

    def tell(self, mode: str, said: object) -> None:
        """What a router that is no more knew concerns nobody."""
        if self._router_back is None:
            super().tell(mode, said)

    async def _ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As the ingress does: if the router dies over it, its successor is asked."""
        while True:
            if self._router_back is not None:
                await asyncio.shield(self._router_back)
            asking = self.loop.create_task(question())
            self._asking[asking] = None
            try:
                return await asking
            except asyncio.CancelledError:
                asking.cancel()
                task = asyncio.current_task()
                if task is None or task.cancelling():  # not the router, but the request
                    raise
            finally:
                del self._asking[asking]

    def _note_plan(self, request: int, assignment: Assignment) -> None:
        briefing = assignment.briefing
        if isinstance(briefing, RaceBriefing):
            limited, start = briefing.costs.constrained, briefing.start
            spends = (start.device_s if limited is Side.DEVICE else start.server_s) < NEVER
            self.plans[request] = self.plans.get(request, False) or spends

    def report(self, reports: Sequence[Report]) -> None:
        """What answers have taught is lost without a router."""
        if self._router_back is None:
            super().report(reports)

    def refresh(self) -> None:
        """Without a scheduler, or without somebody to tell, later."""
        if self.loop.time() < self.deaf_until_s or self._router_back is not None:
            self.refresh_soon()
        else:
            super().refresh()

    def lose_router(self) -> bool:
        """It dies, and whoever waits for it hears of that; False if there was none."""
        if self._router_back is not None:
            return False
        self._router_back = self.loop.create_future()
        for asking in self._asking:
            asking.cancel()
        return True

    def replace_router(self) -> None:
        """Its successor is there, which knows nothing."""
        assert self._router_back is not None
        self.restart_router()
        self._router_back.set_result(None)
        self._router_back = None
        self.refresh()


class Saboteur:
    """Makes faults happen, until the end. done: those that did. A device has one at a time."""

    def __init__(self, world: FragileWorld) -> None:
        self.done: list[Fault] = []
        self._world, self._over, self._silent = world, False, False
        self._hit: set[int] = set()  # devices that have one now
        self._running: dict[asyncio.Task[None], None] = {}

    def begin(self, fault: Fault) -> None:
        """It happens now; what was broken is mended after its time."""
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
        }
        if self._over:
            return
        self.done.append(fault)
        task = self._world.loop.create_task(_run(acts[fault.kind](fault)))
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))

    async def end(self) -> None:
        """Return when all is mended. Nothing breaks any more."""
        self._over = True
        while self._running:
            await asyncio.wait(self._running)  # gives way even where all are done

    async def _kill(self, fault: Fault) -> None:
        world = self._world
        if (server := self._victim(fault)) is None:
            return
        beside = [s for s in world.drafters if s.up and s.hardware is server.hardware]
        for each in (server, *beside):
            await each.kill()
        world.refresh_soon()
        await asyncio.sleep(RESTART_S)
        world.add_server(server.group)
        world.refresh()

    async def _drain(self, fault: Fault) -> None:
        """A replica takes nothing new, and goes when its sessions have ended or its time is over; first there is
        another one."""
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

    def _victim(self, fault: Fault, among: Sequence[Server] | None = None) -> Server | None:
        """One of the replicas (all verifiers) that are up; without any, nothing happens."""
        if up := [s for s in (self._world.servers if among is None else among) if s.up]:
            return up[fault.target % len(up)]
        self.done.remove(fault)
        return None

    def _hits(self, fault: Fault) -> bool:
        """Whether the device has no fault yet; otherwise nothing happens."""
        if fault.target in self._hit:
            self.done.remove(fault)
            return False
        self._hit.add(fault.target)
        return True

    async def _drafter(self, fault: Fault) -> None:
        """A drafter dies; another one takes its place beside its server, if that is still there."""
        world = self._world
        if (drafter := self._victim(fault, world.drafters)) is None:
            return
        await drafter.kill()
        world.refresh_soon()
        await asyncio.sleep(RESTART_S)
        if any(s.up and s.hardware is drafter.hardware for s in world.servers):
            world.add_drafter(drafter.group, drafter.hardware)
            world.refresh()

    async def _silence(self, fault: Fault) -> None:
        """Nothing crosses between a replica and all others, and nobody is told. One at a time: others must be left."""
        among = [] if self._silent else [s for s in self._world.servers if s.path is not None]
        if (server := self._victim(fault, among)) is None:
            return
        assert server.path is not None
        self._silent = True
        server.path.stall()
        await asyncio.sleep(fault.seconds)
        server.path.heal()
        self._silent = False

    async def _leave(self, fault: Fault) -> None:
        """The device's process dies, and another one takes its place, at once or after a while."""
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
        """The device's connection breaks while it drives an answer of its own in mode split, and is resumed in time."""
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
        """Other processes compute on a server for a while."""
        if (server := self._victim(fault)) is not None:
            for _ in range(OTHERS):
                server.hardware.compute(fault.seconds / 4 / OTHERS, lambda: None)

    async def _router(self, fault: Fault) -> None:
        """The router dies; requests ask its successor, which knows nothing of what was learnt."""
        if not self._world.lose_router():
            self.done.remove(fault)
            return
        await asyncio.sleep(fault.seconds / 4)
        self._world.replace_router()

    async def _scheduler(self, fault: Fault) -> None:
        """Nobody hears what comes and goes."""
        self._world.deaf_until_s = self._world.loop.time() + fault.seconds / 4


async def _run(what: Awaitable[None]) -> None:
    await what
