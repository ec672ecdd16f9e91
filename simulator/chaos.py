"""Deterministic faults: a seed draws a small system, what is asked of it and what happens to it; then promises are
checked. A failing seed replays to the byte.

Processes die and come back, devices leave for a while, links stall, are cut and heal, answers come late, the router or
the scheduler is lost, a pool is drained, endpoints are full. Whatever happens, as long as one endpoint could finish a
request and its reader can be reached:

1. Every accepted request ends exactly once, whole; its tokens are those of an undisturbed run.
2. Nobody waits longer between two deliveries, or for the end, than `promised_s`.
3. No session, task or block of memory is left behind.
4. Plans overspend no budget by more than it can make up for (`policies.budget`) and the requests under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

from deployments.experience import Report
from deployments.modes import MODES
from deployments.modes.race import RaceBriefing
from deployments.request.assignment import Assignment, RoutingRequest
from deployments.request.timeouts import Limits
from policies.budget import CORRECTION
from policies.cost import MAINS_USD_PER_J
from policies.dispatch import NEVER, Side
from simulator.answer import Answer
from simulator.clock import Deadlock
from simulator.config import Config, parse
from simulator.network import SILENCE_S
from simulator.run import Clients, Unreachable
from simulator.workload import Request
from simulator.world import Server, World

LAST_FAULT_S = 60.0
HURRY = 10.0  # times as fast requests and faults come where room is tight
RESTART_S = 8.0  # a dead replica's successor answers after so long, as measured with Ray Serve
SHORT_RACES = 40  # in some runs, beside all else
OTHERS = 9  # processes that may slow a server down
DEVICE_FAULTS = ("restart", "cut", "stall", "leave")
FATAL_FAULTS = ("kill", "restart", "cut", "drain", "leave", "drafter", "silence")
FATAL = 3  # of these in a run at most, fewer than the endpoints that a request may lose
LIMITS = {"open_s": 5.0, "first_s": 20.0, "step_s": 15.0}
WAIT_S = 15.0
"""Time limits shorter than the application's, so that what follows from them is worth a promise."""
DEAR_JOULE = 1e-4
"""Dollars: the devices are then the constrained endpoints."""
BUDGETED = ("disco", "stochastic")
"""Dispatch policies that keep to a budget."""
REPORTED_S = 1.0
"""After its end, the router has heard of an answer."""


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
    `step_s`, or if it has given nothing yet, when it could have been reached, have admitted the request and given a
    first token; its successor is up within `wait_s`, and has as long for a first token."""
    timeouts = limits.timeouts
    first_s = timeouts.connect_s + timeouts.open_s + timeouts.first_s
    return max(timeouts.step_s, first_s) + wait_s + first_s


def play(seed: int) -> Outcome:
    """Run a seed and check all promises."""
    config, requests, faults = scenario(seed)
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


def scenario(seed: int) -> tuple[Config, list[Request], list[Fault]]:
    """A small system, its requests, and faults that leave somebody to answer."""
    random, more = Random(seed), Random(f"more of {seed}")  # what is drawn from one leaves the other as it is
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
            "router": {
                "routing": {"name": random.choice(["jsq", "round_robin", "random"])},
                "wait_s": WAIT_S,
            },
            "racing": {
                "dispatch": {"name": random.choice(["disco", "stochastic", "server", "device"])},
                "budget": more.choice([0.0, 0.1, 0.5]),
                "exchange_rate": more.choice([MAINS_USD_PER_J, DEAR_JOULE]),
            },
            "limits": LIMITS,
            "engine": {
                "kv_blocks": 256 if tight else 2048,
                "max_sessions": random.choice([2, 4]) if tight else 64,
                "max_waiting": more.choice([0, 1, 3]) if tight else 64,
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
    if more.random() < 0.2 and not tight:  # the budget of a few races is hard to overspend
        races = [_short_race(more, devices) for _ in range(SHORT_RACES)]
        requests = sorted([*requests, *races], key=lambda request: request.arrival_s)
    first = ["kill", "restart", "cut", "stall", "late", "router", "scheduler", "drain"]
    faults = _faults(random, [random.choice(first) for _ in range(random.randint(1, 6))], servers, devices)
    fatal = sum(fault.kind in FATAL_FAULTS for fault in faults)
    second = [more.choice(["leave", "drafter", "silence"]) for _ in range(more.randint(0, 2))]
    faults += _faults(more, second, servers, devices, fatal)
    if tight:  # more is asked at once than there is room for
        requests = [replace(request, arrival_s=request.arrival_s / HURRY) for request in requests]
        faults = [replace(fault, at_s=fault.at_s / HURRY) for fault in faults]
    return config, requests, faults


def _short_race(random: Random, devices: int) -> Request:
    return Request(
        arrival_s=random.uniform(0, LAST_FAULT_S),
        prompt_tokens=random.randint(1, 120),
        output_tokens=random.randint(1, 20),
        device=random.randrange(devices),
        mode="race",
        max_tokens=1000,
    )


def _faults(random: Random, kinds: Sequence[str], servers: int, devices: int, fatal: int = 0) -> list[Fault]:
    """Of these kinds, but no more than FATAL that are; fatal: those that there are already."""
    faults = []
    for kind in kinds:
        fatal += kind in FATAL_FAULTS
        if fatal > FATAL and kind in FATAL_FAULTS:
            continue
        count = devices if kind in DEVICE_FAULTS else servers
        at_s, target, seconds = (
            random.uniform(0, LAST_FAULT_S),
            random.randrange(count),
            random.uniform(0.2, 20.0),
        )
        if kind == "silence":  # long enough for the connection to count as lost
            seconds *= 2 * SILENCE_S / 20.0
        faults.append(Fault(at_s, kind, target, seconds))
    return faults


class FragileWorld(World):
    """A world whose router and scheduler may be lost.

    deaf_until_s: the scheduler is not there until then, and nothing is listed.
    plans: by raced request, whether the endpoint that the budget limits was to take part.
    """

    def __init__(self, config: Config) -> None:
        self.deaf_until_s = 0.0
        self.plans: dict[int, bool] = {}
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
                assignment = await asking
                self._note_plan(wanted.request, assignment)
                return assignment
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
        self.routing = self.new_router()
        self._router_back.set_result(None)
        self._router_back = None
        self.refresh()


class Saboteur:
    """Makes faults happen. done: those that did. A device has one at a time."""

    def __init__(self, world: FragileWorld) -> None:
        self.done: list[Fault] = []
        self._world = world
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
        """Nothing crosses between a replica and all others, and nobody is told."""
        among = [s for s in self._world.servers if s.path is not None and s.path.is_clear]
        if (server := self._victim(fault, among)) is None:
            return
        assert server.path is not None
        server.path.stall()
        await asyncio.sleep(fault.seconds)
        server.path.heal()

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


async def _rest(world: World) -> None:
    """Let what is still on its way arrive."""
    await asyncio.sleep(2 * SILENCE_S)


def _check(outcome: Outcome, world: FragileWorld) -> None:
    broken = outcome.broken
    limit_s = promised_s(world.config.limits.limits(), world.config.router.wait_s)
    for number, answer in enumerate(outcome.answers):
        expected = world.script.answer(answer.number)
        ids = answer.ids or []
        excused = _reader_is_cut_off(answer, outcome, world)
        if answer.failure is not None and not ids:
            outcome.refused += 1
            away = any(f.kind in DEVICE_FAULTS and f.at_s <= answer.ended_s for f in outcome.faults)
            if not excused and answer.failure not in (
                "overloaded", "unreachable", *(("device_not_found",) if away else ()),
            ):  # fmt: skip
                broken.append(f"request {number} ({answer.request.mode}) failed: {answer.failure}")
        elif ids != expected[: len(ids) if excused else None] or (answer.finish != "stop" and not excused):
            what = f"{answer.failure or answer.finish}, {len(ids)} of {len(expected)} tokens"
            broken.append(f"request {number} ({answer.request.mode}) did not come whole: {what}")
        gap_s = _longest_gap_s(answer)
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
    broken += _overspent(outcome, world)


def _reader_is_cut_off(answer: Answer, outcome: Outcome, world: World) -> bool:
    """Whether it broke off since its reader is at a device that was not there, or behind a link that carried nothing.
    (An answer that a device gives to its own reader, once it has begun, waits for the link to go on elsewhere.)"""
    hit = {
        f.kind
        for f in outcome.faults
        if f.kind in DEVICE_FAULTS
        and f.target == answer.device
        and f.at_s <= answer.ended_s
        and answer.arrival_s <= f.at_s + f.seconds
    }
    return (
        answer.failure is not None
        and world.config.reader == "device"
        and ("leave" in hit or (bool(hit) and (answer.failure == Unreachable.code or not answer.tokens)))
    )


def _longest_gap_s(answer: Answer) -> float:
    """The end counts, for it may come without a token."""
    return max(b - a for a, b in pairwise([answer.arrival_s, *(answer.times_s or ()), answer.ended_s]))


def _tasks(loop: Any) -> list[str]:
    return sorted(
        getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks(loop) if not task.done()
    )


def _overspent(outcome: Outcome, world: FragileWorld) -> list[str]:
    """Whether the endpoint that the budget limits took in more by plan than it may. What it took in since the other one
    had failed is no plan's fault.

    A router plans to spend as long as no more was overspent than it makes up for: by then it may have overspent so
    much, the prompt that it planned last, and those under way, of which it did not know yet what they would spend. One
    that dies takes its books along.
    """
    racing = world.config.racing
    raced = [a for a in outcome.answers if a.number in world.plans]
    if racing.dispatch.name not in BUDGETED or not raced:
        return []
    routers = 1 + sum(fault.kind == "router" for fault in outcome.faults)
    longest = max(answer.prompt_tokens for answer in raced)
    under_way = max(
        sum(b.arrival_s <= a.arrival_s <= b.ended_s + REPORTED_S for b in raced if b is not a) for a in raced
    )
    allowed = racing.budget * sum(answer.prompt_tokens for answer in raced)
    if racing.budget:
        allowed += routers * longest * (CORRECTION * racing.budget + 1 + under_way)
    spent = 0
    for answer in raced:
        if answer.stats is not None and world.plans[answer.number]:
            used = answer.stats.used
            taken_in = used.device_in if racing.exchange_rate == DEAR_JOULE else used.server_in
            spent += min(answer.prompt_tokens, taken_in)
    return [f"a budget of {allowed:.0f} tokens is overspent: {spent}"] if spent > allowed else []
