"""Devices that dial in, in virtual time: the live wire with its resumption, the gateway and the device's side of it.

A part of the seeds has a second small system beside the first: programs at devices, which drive answers of the cloud
and give answers to it, a gateway, a router with its gate, and a key service over a ledger on disk. Lines break and come
back, say nothing for a while, gateways are killed, and programs start anew. Whatever happens:

7. A begun answer comes whole, each token once, unless its program was killed meanwhile; nor does it wait for longer
   than its line, or the gateway, was away by `GAP_S` each time. One that the cloud drives always comes, and never waits
   for longer than `ELSEWHERE_S` each time: the cloud's model goes on with it.
8. A program that is connected is known to the router after `KNOWN_S`, as long as it stays.
9. The ledger has the bills of all that devices had, once; of a killed gateway, but for what came in the last `BOOK_S`.
"""

from __future__ import annotations

import asyncio
import random as shared_random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.wire.acceptor import Acceptor
from tandem.deployments.access.accounts import Accounts, Statement
from tandem.deployments.access.client.bill_sender import BillSender
from tandem.deployments.access.client.caller_cache import Callers
from tandem.deployments.access.key_service import KeyService
from tandem.deployments.access.keys import Caller, Role
from tandem.deployments.access.quota import Standing
from tandem.deployments.access.store import BillBatch
from tandem.deployments.access.usage import UsageQuery, day_of
from tandem.deployments.admission.client import Entrance
from tandem.deployments.admission.controller import SILENT_S, Gate
from tandem.deployments.admission.entry import Entry, Passage
from tandem.deployments.config.settings import GateSettings, LedgerSettings, LimitSettings
from tandem.deployments.gateway.client import Uplink
from tandem.deployments.gateway.connected_devices import ConnectedDevices
from tandem.deployments.gateway.device_session import Cloud
from tandem.deployments.gateway.messages import SILENCE_S, Over
from tandem.deployments.gateway.metering import BOOK_S
from tandem.deployments.learning.report import Report
from tandem.deployments.modes.executor import Executor
from tandem.deployments.request.assignment import EndpointInfo, RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.request.job import Job
from tandem.deployments.request.pools import VERIFIER
from tandem.deployments.request.session import Reach
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Directory
from tandem.deployments.routing.routing import Routing
from tandem.engine.base import Engine, EngineError, EngineStopped, Sampling, SplitInfo
from tandem.engine.null.engine import NullEngine, NullSession
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing
from tandem.simulator.chaos.house import NOON_S
from tandem.simulator.chaos.scenario import Fault
from tandem.simulator.clock import Deadlock
from tandem.simulator.streams import Line, Listener, NetworkLoop
from tandem.simulator.world.network import RESUME_S

SHARE = 0.12
"""Share of the seeds that have such a system."""
KINDS = ("drop", "hush", "gateway", "redial")
PORT, INSIDE = 8443, "gateway:1"
LAST_S = 40.0
"""Time of the last request, and of the last fault."""
VERIFIERS = 2
"""Addresses of the verifier's engine."""
EXPIRY_S, SIGN_S, REFRESH_S = 4.0, 1.0, 0.5
"""Intervals of the live scheduler and gateway."""
GAP_S, ELSEWHERE_S, KNOWN_S = 5.0, 3.0, 6.0
AFTER_S = 10.0
"""Seconds after a fault's end in which its effects are excused."""
MOST_EVENTS = 1_000_000
EXPECTED = NullEngine()


@dataclass(frozen=True, slots=True)
class _Request:
    """A request. afar: whether the device's program drives it, with the cloud's engine; else the cloud, with its."""

    at_s: float
    device: int
    afar: bool
    prompt: tuple[int, ...]
    tokens: int


@dataclass(slots=True)
class DialledAnswer:
    """An answer. times_s: of its deliveries, after that of the request and before that of its end."""

    request: _Request
    times_s: list[float]
    ids: list[int] = field(default_factory=list)
    failure: str = ""
    ended: bool = False


def scenario(seed: int) -> tuple[int, list[_Request], list[Fault]]:
    """Return the number of devices, the requests and the faults of a seed; no device where there is none of this."""
    random = Random(f"devices that dial in of {seed}")
    if random.random() > SHARE:
        return 0, [], []
    devices = random.randint(1, 2)
    requests = [
        _Request(
            at_s=random.uniform(1.0, LAST_S),
            device=random.randrange(devices),
            afar=random.random() < 0.6,
            prompt=tuple(random.randrange(1, 1000) for _ in range(random.randint(1, 30))),
            tokens=random.randint(1, 150),
        )
        for _ in range(random.randint(3, 10))
    ]
    faults = [
        Fault(
            at_s=(hit := random.choice(requests)).at_s + random.uniform(0.1, 3.0),  # in mid-answer
            kind=random.choice(KINDS),
            target=hit.device,
            seconds=random.uniform(0.1, 10.0),
        )
        for _ in range(random.randint(1, 4))
    ]
    return devices, sorted(requests, key=lambda request: request.at_s), faults


class Played(NamedTuple):
    """Outcome of a seed. broken: broken promises, in words; faults: those that happened."""

    broken: list[str]
    faults: list[Fault]
    answers: list[DialledAnswer]


def play_dialled(seed: int, folder: Path) -> Played:
    """Play a seed, with a ledger in that folder."""
    devices, requests, faults = scenario(seed)
    if not devices:
        return Played([], [], [])
    site = _Site(Random(seed), devices, folder)
    before = shared_random.getstate()  # which the live code draws its pauses from
    shared_random.seed(seed)
    try:
        site.loop.run(site.play(requests, faults))
    except Deadlock:
        site.broken.append("deadlock: nothing is left to happen")
    except Exception as error:
        site.broken.append(f"crash: {type(error).__name__}: {error}")
    finally:
        shared_random.setstate(before)
    return Played(site.broken, site.done, site.answers)


class _Program:
    """A device's program: its engine, its connection to the gateway, and answers that it drives."""

    def __init__(self, site: _Site, index: int) -> None:
        self.name, self.engine = f"device-{index}", NullEngine(20.0, context=4096)
        self.uplink = Uplink(
            f"{self.name}:{PORT}", site.secrets[index], self.engine, self._record, settings=site.wire
        )
        self.executor = Executor(
            self.uplink.assign,
            Reach(self._dial, reached_s=lambda: self.uplink.reached_s),
            report=self._over,
        )
        self.jobs: set[asyncio.Task[None]] = set()
        self.running = site.loop.create_task(self.uplink.run())
        self.up_since_s: float | None = None
        self.dead = False

    def _record(self) -> DeviceRecord:
        info = self.engine.info
        return DeviceRecord(
            name="", address="", profile="native", model=info.model, vocabulary=info.vocabulary, capacity=8,
            continuation=info.continuation,
        )  # fmt: skip

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        return await self.uplink.dial(endpoint)

    def _over(self, report: Report) -> None:
        if not self.dead:
            self.uplink.over(Over(report.request, report.bill.used, report.bill.joules))

    async def end(self) -> None:
        """End it, as a killed process ends."""
        self.dead = True
        for each in (self.running, *self.jobs):
            each.cancel()
        await asyncio.wait([self.running, *self.jobs])
        await self.executor.settled()


class _Gateway:
    """The gateway's process. dead: it was killed, and sends nothing any more."""

    def __init__(self, site: _Site) -> None:
        self._site, self.dead = site, False
        self.bills = BillSender(self._charge)
        self._entrance = Entrance(self, lambda: self.bills.last)
        cloud = Cloud(
            assign=site.routing.assign,
            account=site.account,
            middles=_no_middles,
            register=self._register,
            report=self._report,
            booked=partial(self.bills.booked, site.limits.open_s),
            dial=site.dial,
            entrance=self._entrance,
        )
        self.devices = ConnectedDevices(Callers(site.caller, site.loop.time), cloud, self._gone)
        self._listener = site.loop.listeners[PORT] = Listener()
        self._acceptor = Acceptor({}, self.devices.admit, site.wire, self.devices.greet, self.devices.arrived)
        accept = self._acceptor.accept(self._listener, None)  # type: ignore[arg-type]  # it stands for a socket
        self._tasks = [site.loop.create_task(each) for each in (accept, self._sign(), self._check())]

    async def _sign(self) -> None:
        while True:
            self._site.directory.register(self.devices.records(INSIDE), self._site.loop.time())
            await asyncio.sleep(SIGN_S)

    async def _check(self) -> None:
        while True:
            await self.devices.check()
            await asyncio.sleep(SIGN_S)

    async def _register(self, record: DeviceRecord) -> None:
        self._site.directory.register(
            [msgspec.structs.replace(record, address=INSIDE)], self._site.loop.time()
        )
        self._site.refresh()

    def _gone(self, device: str) -> None:
        if not self.dead:
            self._site.directory.lost(device, INSIDE, self._site.loop.time())

    def _report(self, report: Report) -> None:
        if not self.dead:
            quotas, charge = self._site.gate.quotas, report.charge(day_of(self._site.now_s()))
            self.bills.add(charge, partial(quotas.used, report.account, report.tokens, report.request))

    async def _charge(self, batch: BillBatch) -> dict[str, Standing]:
        return {} if self.dead else await self._site.charge(batch)

    async def enter(
        self, replica: str, entry: Entry, left: Sequence[int], wanted: Sequence[RoutingRequest]
    ) -> Passage:
        for request in left:
            self._site.gate.leave(replica, request)
        return await self._site.gate.enter(replica, entry)

    def left(self, replica: str, requests: Sequence[int]) -> None:
        if not self.dead:
            for request in requests:
                self._site.gate.leave(replica, request)

    def under_way(self, replica: str, entries: Sequence[Entry]) -> None:
        if not self.dead:
            self._site.gate.under_way(replica, {entry.request: entry for entry in entries})

    async def end(self, killed: bool) -> None:
        """End it, at once or with good-byes."""
        if killed:
            self.dead = True
            self._site.loop.listeners.pop(PORT)
            for line in self._site.loop.lines.values():
                line.reset()
            await asyncio.sleep(0)  # its connections notice, and may not be resumed
            for connection in list(self._acceptor.connections):
                if connection.away:
                    connection.give_up("its process is killed")
        else:
            await self.bills.booked(self._site.limits.open_s)
        for task in self._tasks:
            task.cancel()
        await self._acceptor.close()
        self._entrance.close()
        self.bills.close()


class _Site:
    """The system: one verifier, a router with its gate, a key service, a gateway and devices' programs."""

    def __init__(self, random: Random, devices: int, folder: Path) -> None:
        self.loop = NetworkLoop()  # type: ignore[abstract]  # it has no threads or signals
        self.loop.most_events = MOST_EVENTS
        self.limits = LimitSettings()
        self.wire = self.limits.wire(SILENCE_S, RESUME_S)
        self.broken: list[str] = []
        self.done: list[Fault] = []
        self.secrets: list[str] = []
        self.directory = Directory(EXPIRY_S)
        self.routing = Routing(
            Assigner(collaboration.create("explicit"), lambda: routing.create("round_robin"), 64),
            random=random,
        )
        self.gate = Gate({"": lambda: 64}, GateSettings(), self.loop.time)
        self.verifier, self._spare = _Counting(self.loop), NullEngine(20.0, context=4096)
        self.answers: list[DialledAnswer] = []
        self._hit: set[int] = set()  # devices with a fault now; −1: the gateway
        self._kills_s: list[float] = []
        self._path, self._devices = folder / "devices.sqlite", devices
        for index in range(devices):
            self.loop.lines[f"device-{index}"] = Line(self.loop, random.choice([0.003, 0.015, 0.04]))
        self._over = False

    # -- what processes ask of each other ------------------------------------------------------------------

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return NOON_S + self.loop.time()

    async def account(self, key: str) -> Statement:
        return self._service.statement(key)

    async def caller(self, hashed: str | None) -> Caller | None:
        return self._service.caller(hashed)

    async def charge(self, batch: BillBatch) -> dict[str, Standing]:
        """Have the key service book bills."""
        return await self._service.booked(batch)

    async def dial(self, endpoint: EndpointInfo) -> Engine:
        """Return an engine inside the cloud, for the gateway."""
        return self.verifier

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        """Return an engine for answers that the cloud drives."""
        if not endpoint.device:
            return self._spare
        if self._gateway.dead or (engine := self._gateway.devices.engines.get(endpoint.engine)) is None:
            raise EngineStopped(f"{endpoint.engine} is not here")
        return engine

    def refresh(self) -> None:
        """Tell the router what is up."""
        self.directory.update(self.loop.time())
        self.routing.see(self.directory.since(self.routing.assigner.version), self.loop.time())

    # -- a run ---------------------------------------------------------------------------------------------

    async def play(self, requests: Sequence[_Request], faults: Sequence[Fault]) -> None:
        """Play requests and faults, and check the promises."""
        self._service = KeyService(LedgerSettings(path=self._path), Accounts(), self.now_s)
        await self._service.open()
        for index in range(self._devices):
            _, secret = await self._service.make(f"device-{index}", Role.DEVICE, {})
            self.secrets.append(secret)
        info = self.verifier.info
        self.directory.list_pool(
            VERIFIER,
            [
                EndpointInfo(f"{VERIFIER} {n}", f"{VERIFIER}-{n}", VERIFIER, info.model, info.vocabulary)
                for n in range(VERIFIERS)
            ],
        )
        self._gateway = _Gateway(self)
        self._programs = [_Program(self, index) for index in range(self._devices)]
        self._cloud = Executor(self.routing.assign, Reach(self._dial))
        watching = self.loop.create_task(self._watch())
        tasks = [
            self.loop.create_task(self._at(each.at_s, partial(self._ask, n, each)))
            for n, each in enumerate(requests)
        ]
        acts = [self.loop.create_task(self._at(each.at_s, partial(self._strike, each))) for each in faults]
        await asyncio.wait([*tasks, *acts])
        for task in (*tasks, *acts):
            if not task.cancelled() and (error := task.exception()) is not None:
                self.broken.append(f"crash: {type(error).__name__}: {error}")
        await asyncio.sleep(AFTER_S)
        await self._cloud.settled()
        for program in self._programs:
            await program.executor.settled()
        watching.cancel()
        await self._check()

    async def _at(self, at_s: float, act: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(at_s)
        await act()

    async def _ask(self, number: int, request: _Request) -> None:
        program = self._programs[request.device]
        answer = DialledAnswer(request, [self.loop.time()])
        self.answers.append(answer)
        sampling = Sampling(max_tokens=request.tokens, ignore_eos=True)
        job = (
            Job(number, request.prompt, sampling, mode="cloud")
            if request.afar
            else Job(number, request.prompt, sampling, mode="device", device=program.name)
        )
        executor = program.executor if request.afar else self._cloud
        task = self.loop.create_task(self._take(answer, executor, job))
        if request.afar:
            program.jobs.add(task)
            task.add_done_callback(program.jobs.discard)
        await asyncio.wait((task,))
        answer.times_s.append(self.loop.time())
        if task.cancelled():
            answer.failure = "the program was killed"

    async def _take(self, answer: DialledAnswer, executor: Executor, job: Job) -> None:
        try:
            async with aclosing(executor.run(job)) as deltas:
                async for delta in deltas:
                    answer.ids += delta.ids
                    answer.times_s.append(self.loop.time())
            answer.ended = True
        except EngineError as error:
            answer.failure = f"{error.code}: {error}"

    # -- faults ---------------------------------------------------------------------------------------------

    async def _strike(self, fault: Fault) -> None:
        """Have a fault happen, unless what it hits has one."""
        target = -1 if fault.kind == "gateway" else fault.target
        if target in self._hit:
            return
        self._hit.add(target)
        self.done.append(fault)
        line = self.loop.lines[f"device-{fault.target}"]
        if fault.kind == "drop":
            line.cut()
            await asyncio.sleep(fault.seconds)
            line.heal()
        elif fault.kind == "hush":
            line.stall()
            await asyncio.sleep(fault.seconds)
            line.heal()
        elif fault.kind == "gateway":
            self._kills_s.append(self.loop.time())
            await self._gateway.end(killed=True)
            await asyncio.sleep(fault.seconds)
            self._gateway = _Gateway(self)
        else:
            line.reset()
            await self._programs[fault.target].end()
            await asyncio.sleep(fault.seconds)
            self._programs[fault.target] = _Program(self, fault.target)
        self._hit.remove(target)

    # -- promises -------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Refresh the listing, and see who is connected and not known."""
        while True:
            self.refresh()
            now_s, known = self.loop.time(), self.routing.assigner.devices
            for program in self._programs:
                if not program.uplink.up or program.name in known:
                    program.up_since_s = now_s
                elif program.up_since_s is not None and now_s - program.up_since_s > KNOWN_S:
                    self.broken.append(f"{program.name} is connected, and not listed at {now_s:.1f} s")
                    program.up_since_s = None
            await asyncio.sleep(REFRESH_S)

    async def _check(self) -> None:
        for number, answer in enumerate(self.answers):
            self._check_answer(number, answer)
        for program in self._programs:
            if not program.uplink.up or program.name not in self.routing.assigner.devices:
                self.broken.append(f"{program.name} does not come back")
            await program.end()
            if sessions := (await program.engine.stats()).sessions:
                self.broken.append(f"{program.name} is left with {sessions} sessions")
        await self._gateway.end(killed=False)
        if sessions := (await self.verifier.stats()).sessions:
            self.broken.append(f"the devices' verifier is left with {sessions} sessions")
        await asyncio.sleep(SILENT_S + 1.0)
        self.gate._forget_silent()  # as the next one to enter would have it
        if under_way := self.gate.under_way_now:
            self.broken.append(f"{under_way} requests of devices have not left the gate")
        await self._check_bills()
        await self._service.close()
        await asyncio.sleep(0)
        rest = {task for task in asyncio.all_tasks(self.loop) if not task.done()} - {asyncio.current_task()}
        if rest:
            names = sorted(getattr(task.get_coro(), "__qualname__", "?") for task in rest)
            self.broken.append(f"tasks are left: {', '.join(names)}")

    def _check_answer(self, number: int, answer: DialledAnswer) -> None:
        request, what = answer.request, f"answer {number} of device-{answer.request.device}"
        began_s, ended_s = answer.times_s[0], answer.times_s[-1]
        expected: list[int] = []
        for _ in range(request.tokens):
            expected.append(EXPECTED.next_token(request.prompt, expected))
        meanwhile = [
            fault
            for fault in self.done
            if (fault.kind == "gateway" or fault.target == request.device)
            and began_s <= fault.at_s + fault.seconds + AFTER_S
            and fault.at_s <= ended_s
        ]
        killed = request.afar and any(fault.kind == "redial" for fault in meanwhile)
        refused = request.afar and not answer.ids and bool(meanwhile)
        if answer.ids != expected[: len(answer.ids)]:
            self.broken.append(f"{what} has other tokens")
        elif (not answer.ended or len(answer.ids) < len(expected)) and not (killed or refused):
            came = f"{len(answer.ids)} of {len(expected)} tokens, {answer.failure}"
            self.broken.append(f"{what} did not come whole: {came}")
        for before_s, after_s in pairwise(answer.times_s):
            within = [f for f in meanwhile if f.at_s <= after_s and before_s <= f.at_s + f.seconds + AFTER_S]
            gap_s, limit_s = after_s - before_s, ELSEWHERE_S * max(1, len(within))
            if request.afar:
                limit_s = max(GAP_S, sum(fault.seconds + GAP_S for fault in within))
            if not killed and gap_s > limit_s:
                self.broken.append(f"{what} waited {gap_s:.1f} s")

    async def _check_bills(self) -> None:
        """The ledger has what the verifier gave, but for the last moments of killed gateways."""
        booked = Bill()
        for usage in await self._service.usage(UsageQuery(by=("account",))):
            booked.add(usage.bill)
        lost = Counter[str]()
        for at_s, side, tokens in self.verifier.given:
            if self._may_be_lost(at_s):
                lost[side] += tokens
        due = Counter[str]()
        for _, side, tokens in self.verifier.given:
            due[side] += tokens
        for side, found in (("in", booked.used.server_in), ("out", booked.used.server_out)):
            if not due[side] - lost[side] <= found <= due[side]:
                self.broken.append(
                    f"{found} tokens {side} are booked for devices; {due[side]} are due, {lost[side]} may be lost"
                )
        afar = [
            answer for answer in self.answers
            if answer.request.afar and answer.ended and not self._killed_at_end(answer)
        ]  # fmt: skip
        if booked.requests < len(afar):
            self.broken.append(
                f"{booked.requests} requests of devices are booked, and {len(afar)} have ended"
            )

    def _may_be_lost(self, at_s: float) -> bool:
        """Return whether a gateway was killed before it could book what happened then."""
        return any(killed_s - BOOK_S - LATE_S <= at_s <= killed_s + LATE_S for killed_s in self._kills_s)

    def _killed_at_end(self, answer: DialledAnswer) -> bool:
        """Return whether its program was killed before it could say that the answer is over, or the gateway before it
        could book that."""
        ended_s = answer.times_s[-1]
        return self._may_be_lost(ended_s) or any(
            fault.kind == "redial"
            and fault.target == answer.request.device
            and ended_s - LATE_S <= fault.at_s <= ended_s + LATE_S
            for fault in self.done
        )


LATE_S = 0.1
"""Longest from a token at the verifier to the gateway's count."""


async def _no_middles(model: str) -> tuple[SplitInfo, ...]:
    return ()


class _Counting(NullEngine):
    """The verifier. given: when, "in" or "out", and how many tokens its sessions have taken in or given out."""

    def __init__(self, loop: NetworkLoop) -> None:
        super().__init__(20.0, context=4096)
        self.given: list[tuple[float, str, int]] = []
        self._loop = loop

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> NullSession:
        self.given.append((self._loop.time(), "in", len(prompt) + len(log)))
        return await super().open(prompt, sampling, log)

    def next_token(self, prompt: Sequence[int], output: Sequence[int]) -> int:
        self.given.append((self._loop.time(), "out", 1))
        return super().next_token(prompt, output)
