"""Deterministic faults: a seed draws a small system, what is asked of it and what happens to it; then promises are
checked. A failing seed replays to the byte.

Processes die and come back, links stall, are cut and heal, answers come late, the router or the scheduler is lost, a
pool is drained, endpoints are full. Whatever happens, as long as one endpoint could finish a request:

1. Every accepted request ends exactly once, whole; its tokens are those of an undisturbed run.
2. Nobody waits longer between two deliveries than `promised_s`.
3. No session, task or block of memory is left behind.
4. No budget is overspent by more than the requests under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from deployments.experience import Report
from deployments.modes import MODES
from deployments.request.assignment import Assignment, RoutingRequest
from deployments.request.timeouts import Limits
from policies.dispatch import Side
from simulator.answer import Answer
from simulator.clock import Deadlock
from simulator.config import Config, parse
from simulator.network import SILENCE_S
from simulator.run import Clients
from simulator.workload import Request
from simulator.world import Server, World

LAST_FAULT_S = 60.0
RESTART_S = 8.0  # a dead replica's successor answers after so long, as measured with Ray Serve
OTHERS = 9  # processes that may slow a server down
DEVICE_FAULTS = ("restart", "cut", "stall")
FATAL = 3  # processes that die in a run at most, fewer than the endpoints that a request may lose


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens. at_s: when; kind: a method of `Saboteur`; target: whom it concerns; seconds: for how long."""

    at_s: float
    kind: str
    target: int
    seconds: float


@dataclass(slots=True)
class Outcome:
    """What became of a seed.

    broken: promises that were not kept, in words.
    faults: those that really happened.
    answers: to all requests.
    refused: of these, those that were turned away before their first token.
    longest_gap_s: between a request, its deliveries and its end.
    """

    seed: int
    broken: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    refused: int = 0
    longest_gap_s: float = 0.0


def promised_s(limits: Limits, wait_s: float) -> float:
    """The longest that a reader waits where somebody could answer: an endpoint that is silent counts as lost after
    `step_s` at the latest, its successor is up within `wait_s`, and answers within `step_s`."""
    return limits.timeouts.step_s + wait_s + limits.timeouts.step_s


def play(seed: int) -> Outcome:
    """Run a seed and check all promises."""
    random = Random(seed)
    config, requests, faults = scenario(random)
    world = FragileWorld(config)
    clients, saboteur = Clients(world, lambda _: None), Saboteur(world)
    outcome = Outcome(seed, answers=clients.answers)

    async def main() -> None:
        for fault in faults:
            world.loop.call_at(fault.at_s, saboteur.begin, fault)
        await clients.run(requests)
        await saboteur.end()
        await _rest(world)

    try:
        world.loop.run(main())
    except Deadlock:
        outcome.broken.append("deadlock: nothing is left to happen, and requests are under way")
    except Exception as error:
        outcome.broken.append(f"crash: {type(error).__name__}: {error}")
    outcome.faults = saboteur.done
    if not outcome.broken:
        _check(outcome, world)
    return outcome


def scenario(random: Random) -> tuple[Config, list[Request], list[Fault]]:
    """A small system, its requests, and faults that leave somebody to answer."""
    servers, devices = random.randint(2, 3), random.randint(1, 3)
    tight = random.random() < 0.3
    config = parse(
        {
            "name": "chaos",
            "seed": random.randrange(2**31),
            "reader": random.choice(["cloud", "device"]),
            "mode": None,
            "history": True,
            "workload": {"kind": "synthetic", "count": 1},
            "window": {"name": random.choice(["static", "dynamic", "awc"])},
            "router": {"routing": {"name": random.choice(["jsq", "round_robin", "random"])}},
            "racing": {"dispatch": {"name": random.choice(["disco", "stochastic", "server", "device"])}},
            "engine": {
                "kv_blocks": 256 if tight else 2048,
                "max_sessions": random.choice([2, 4]) if tight else 64,
                "max_waiting": 64,
                "token_budget": 256,
                "scheduling": random.choice([None, {"name": "buffer_aware"}, {"name": "fcfs"}]),
            },
            "targets": [
                {
                    "model": "target",
                    "count": servers,
                    "measured": {"base_s": 0.02, "token_s": 1e-4},
                    "measured_draft": {"base_s": 0.004, "token_s": 1e-5},
                    "call_s": random.choice([0.0, 0.001]),
                }
            ],
            "devices": [
                {
                    "count": devices,
                    "sessions": 8,
                    "rates": {"prefill_tokens_per_s": 500, "decode_tokens_per_s": 40},
                    "link": {"rtt_ms": random.choice([5, 30, 80]), "jitter_ms": random.choice([0, 2])},
                    "power_w": 5.0,
                }
            ],
        }
    )
    modes: list[str | None] = [None, *MODES]
    requests = [
        Request(
            arrival_s=arrival_s,
            prompt_tokens=random.randint(1, 120),
            output_tokens=(output := random.randint(1, 200)),
            acceptance=bytes(random.random() < 0.75 for _ in range(output)),
            device=random.randrange(devices),
            reader_rate=random.choice([0.0, 5.0, 20.0]),
            mode=random.choice(modes),
            max_tokens=1000,
        )
        for arrival_s in sorted(random.uniform(0, LAST_FAULT_S) for _ in range(random.randint(3, 16)))
    ]
    return config, requests, _faults(random, servers, devices)


def _faults(random: Random, servers: int, devices: int) -> list[Fault]:
    kinds = ["kill", "restart", "cut", "stall", "late", "router", "scheduler", "drain"]
    chosen = [random.choice(kinds) for _ in range(random.randint(1, 6))]
    faults, fatal = [], 0
    for kind in chosen:
        fatal += kind in ("kill", "restart", "cut", "drain")
        if fatal > FATAL and kind in ("kill", "restart", "cut", "drain"):
            continue
        count = devices if kind in ("restart", "cut", "stall") else servers
        faults.append(
            Fault(random.uniform(0, LAST_FAULT_S), kind, random.randrange(count), random.uniform(0.2, 20.0))
        )
    return faults


class FragileWorld(World):
    """A world whose router and scheduler may be lost.

    deaf_until_s: the scheduler is not there until then, and nothing is listed.
    """

    def __init__(self, config: Config) -> None:
        self.deaf_until_s = 0.0
        self._router_back: asyncio.Future[None] | None = None  # None: it is there
        self._asking: dict[asyncio.Task[Assignment], None] = {}
        super().__init__(config)

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        """As the ingress does: if the router dies over it, its successor is asked."""
        while True:
            if self._router_back is not None:
                await asyncio.shield(self._router_back)
            asking = self.loop.create_task(super().assign(wanted))
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
        self.routing = self.new_router()
        self._router_back.set_result(None)
        self._router_back = None
        self.refresh()


class Saboteur:
    """Makes faults happen. done: those that did."""

    def __init__(self, world: FragileWorld) -> None:
        self.done: list[Fault] = []
        self._world = world
        self._running: dict[asyncio.Task[None], None] = {}

    def begin(self, fault: Fault) -> None:
        """It happens now; what was broken is mended after its time."""
        acts: dict[str, Callable[[Fault], Awaitable[None]]] = {
            "kill": self._kill,
            "restart": self._restart,
            "cut": self._cut,
            "stall": self._stall,
            "late": self._late,
            "router": self._router,
            "scheduler": self._scheduler,
            "drain": self._drain,
        }
        self.done.append(fault)
        task = self._world.loop.create_task(_run(acts[fault.kind](fault)))
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))

    async def end(self) -> None:
        """Return when all is mended."""
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

    def _victim(self, fault: Fault) -> Server | None:
        """One of the replicas that are up; without any, nothing happens."""
        if up := [s for s in self._world.servers if s.up]:
            return up[fault.target % len(up)]
        self.done.remove(fault)
        return None

    async def _restart(self, fault: Fault) -> None:
        await self._world.devices.restart(fault.target)
        self._world.refresh()

    async def _cut(self, fault: Fault) -> None:
        there = self._world.devices[fault.target]
        for path in (there.path, there.uplink):
            path.cut()
        await asyncio.sleep(fault.seconds)
        for path in (there.path, there.uplink):
            path.heal()

    async def _stall(self, fault: Fault) -> None:
        there = self._world.devices[fault.target]
        for path in (there.path, there.uplink):
            path.stall()
        await asyncio.sleep(min(fault.seconds, SILENCE_S))
        for path in (there.path, there.uplink):
            path.heal()

    async def _late(self, fault: Fault) -> None:
        """Other processes compute on a server for a while."""
        for _ in range(OTHERS):
            self._world.servers[fault.target].hardware.compute(fault.seconds / 4 / OTHERS, lambda: None)

    async def _router(self, fault: Fault) -> None:
        """The router dies; requests ask its successor, which knows nothing of what was learnt."""
        if self._world.lose_router():
            await asyncio.sleep(fault.seconds / 4)
            self._world.replace_router()

    async def _scheduler(self, fault: Fault) -> None:
        """Nobody hears what comes and goes."""
        self._world.deaf_until_s = self._world.loop.time() + fault.seconds / 4


async def _run(what: Awaitable[None]) -> None:
    await what


async def _rest(world: World) -> None:
    """Let what is still on its way arrive."""
    await asyncio.sleep(2 * SILENCE_S)


def _check(outcome: Outcome, world: World) -> None:
    broken = outcome.broken
    limit_s = promised_s(world.config.limits.limits(), world.config.router.wait_s)
    for number, answer in enumerate(outcome.answers):
        expected = world.script.answer(answer.number)
        ids = answer.ids or []
        if answer.failure is not None and not ids:
            outcome.refused += 1
            away = any(f.kind in DEVICE_FAULTS and f.at_s <= answer.failed_s for f in outcome.faults)
            if answer.failure not in ("overloaded", "unreachable", *(("device_not_found",) if away else ())):
                broken.append(f"request {number} ({answer.request.mode}) failed: {answer.failure}")
        elif ids != expected or answer.finish != "stop":
            what = f"{answer.failure or answer.finish}, {len(ids)} of {len(expected)} tokens"
            broken.append(f"request {number} ({answer.request.mode}) did not come whole: {what}")
        gap_s = _longest_gap_s(answer.arrival_s, answer.times_s or ())
        outcome.longest_gap_s = max(outcome.longest_gap_s, gap_s)
        if gap_s > limit_s:
            broken.append(f"request {number} ({answer.request.mode}) waited {gap_s:.1f} s")
    for server in (*world.servers, *world.drafters):
        if server.alive and server.open_sessions:
            broken.append(f"{server.endpoint.name} is left with {server.open_sessions} sessions")
        if server.alive and (memory := server.core.leftover):
            broken.append(f"{server.endpoint.name} is left with {memory} blocks in use")
    for index in range(len(world.devices)):
        if sessions := world.devices[index].device.sessions:
            broken.append(f"device {index} is left with {sessions} sessions")
    if tasks := _tasks(world.loop):
        broken.append(f"tasks are left: {', '.join(tasks)}")
    broken += _overspent(world)


def _longest_gap_s(arrival_s: float, times_s: Sequence[float]) -> float:
    return max((b - a for a, b in pairwise([arrival_s, *times_s])), default=0.0)


def _tasks(loop: Any) -> list[str]:
    return sorted(
        getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks(loop) if not task.done()
    )


def _overspent(world: World) -> list[str]:
    """Budgets hold up to one prompt: what is planned is booked, and what turned out otherwise is made up for."""
    found = []
    account = world.experience.accounts.of("")
    for side in Side:
        budget = account.payer.budgets[side]
        if budget.spent < -1e-6 or budget.tokens < 0:
            found.append(f"the books of {side} are impossible: {budget.spent} of {budget.tokens}")
    return found
