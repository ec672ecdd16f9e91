"""A world of endpoints in processes of their own, and many answers at once in it while something fails."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.wire.client import RemoteEngine
from tandem.cluster.wire.peers import Peers
from tandem.deployments.config.settings import AccountSettings
from tandem.deployments.modes.base import Services
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.race.mode import Racing
from tandem.deployments.request.assignment import Assignment, EndpointInfo, RoutingRequest
from tandem.deployments.request.job import Job, JobStats
from tandem.deployments.request.session import Reach
from tandem.deployments.request.timeouts import Limits
from tandem.deployments.request.tokenlog import Origin
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Directory
from tandem.deployments.routing.routing import Routing
from tandem.engine.base import Engine, Sampling
from tandem.engine.split.base import OuterEngine
from tandem.policies.race.dispatch import DEVICE_ONLY, SERVER_ONLY, DispatchState, Start
from tandem.policies.race.migration import MigrationState
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing
from tests.deployments.faults import Script, with_race, with_window
from tests.deployments.processes import EndpointProcess
from tests.deployments.relay import Relay

Prompts = Sequence[tuple[int, ...]]

STREAMS, TOKENS = 32, 96
WELL_BEGUN = 8  # tokens of an answer after which a fault may come

PHONE = "phone"
ENDPOINTS = ("verifier-0", "verifier-1", "drafter-0", "middle-0", "middle-1", PHONE)
MODES: dict[str, tuple[str, str | None]] = {
    "cloud": ("cloud", None),
    "device": ("device", PHONE),
    "fused": ("speculative", None),  # with the cloud's own drafter
    "distributed": ("speculative", PHONE),  # with the device, and in some rounds the cloud's own drafter
    "race": ("race", PHONE),
    "split": ("split", None),  # this process is the device
}


class Fleet:
    """The endpoints' processes by name; who died is started anew when asked for."""

    def __init__(self) -> None:
        self._processes = {name: _start(name) for name in ENDPOINTS}

    def __getitem__(self, name: str) -> EndpointProcess:
        if not self._processes[name].alive:
            self._processes[name].end()
            self._processes[name] = _start(name)
        return self._processes[name]

    def alive(self) -> dict[str, EndpointProcess]:
        return {name: process for name, process in self._processes.items() if process.alive}

    def end(self) -> None:
        for process in self._processes.values():
            process.end()


def _start(name: str) -> EndpointProcess:
    return EndpointProcess.device(name) if name == PHONE else EndpointProcess.replica(name.partition("-")[0])


class Alternating:
    """Starts two answers at the server and two at the device (one after the other, all of the server's would be
    at the same replica, since those are taken in turn)."""

    def __init__(self) -> None:
        self._starts = itertools.cycle((SERVER_ONLY, SERVER_ONLY, DEVICE_ONLY, DEVICE_ONLY))

    def choose(self, state: DispatchState) -> Start:
        return next(self._starts)


class Scattered:
    """Hands over from the server (the device costs nothing) at different lengths of different answers."""

    prepares = False

    def wanted(self, state: MigrationState) -> bool:
        return True

    def due(self, state: MigrationState) -> bool:
        return state.known % 56 == 0


@dataclass
class Answer:
    """times_s: when each of `ids` came, and before them when it was asked for; monotonic seconds."""

    prompt: tuple[int, ...]
    times_s: list[float]
    ids: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    finish: str | None = None
    stats: JobStats = field(default_factory=JobStats)

    @property
    def longest_gap_s(self) -> float:
        """Between two tokens."""
        return max(b - a for a, b in itertools.pairwise(self.times_s[1:]))

    @property
    def moved(self) -> bool:
        """Whether it went on elsewhere because an endpoint failed."""
        raced = Racing.of(self.stats)
        return self.stats.replans + raced.failovers + raced.migrations_failed > 0

    def runs(self) -> Iterator[tuple[Origin, int, int]]:
        """(origin, first position, position after the last) of the tokens that came from one endpoint in a row."""
        position = 0
        for origin, tokens in itertools.groupby(self.origins):
            begin, position = position, position + len(list(tokens))
            yield origin, begin, position


class World:
    """An executor, and a router that sees the fleet.

    links: by name, in place of endpoints' own addresses.
    outer: the target's outer part, where this process is a device.
    """

    def __init__(
        self, fleet: Fleet, links: Mapping[str, Relay] | None = None, outer: OuterEngine | None = None
    ) -> None:
        self._fleet = fleet
        self._links = {name: link.address for name, link in (links or {}).items()}
        self.peers = Peers()
        self._directory = Directory(expiry_s=float("inf"))
        modes = {
            "race": with_race(Alternating, Scattered),
            "speculative": with_window(lambda: Script((4, 4, 1))),
        }
        assigner = Assigner(collaboration.create("explicit"), lambda: routing.create("round_robin"), 64)
        self._router = Routing(assigner, accounts=AccountSettings(budget=1.0), modes=modes)
        self.executor = Executor(
            self._assign,
            Reach(self._dial, self._lost),
            modes,
            Services(outer=outer),
            Limits(),
            self._router.learn,
        )

    async def __aenter__(self) -> World:
        for pool in ("verifier", "drafter", "middle"):
            names = [name for name in ENDPOINTS if name.startswith(pool)]
            self._directory.list_pool(pool, [await self._replica(name, pool) for name in names])
        vocabulary = (await self.engine(PHONE)).info.vocabulary
        record = DeviceRecord(
            name=PHONE, address=self._address(PHONE), profile="native", model="small", vocabulary=vocabulary
        )
        self._directory.register([record], 0.0)
        self._router.see(self._directory.snapshot)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.peers.close()

    async def engine(self, name: str) -> RemoteEngine:
        """The endpoint itself, past any link."""
        process = self._fleet[name]
        return await self.peers.engine(process.address, process.engine)

    async def _replica(self, name: str, pool: str) -> EndpointInfo:
        info = (await self.engine(name)).info
        return EndpointInfo(name, self._address(name), pool, info.model, info.vocabulary)

    def _address(self, name: str) -> str:
        return self._links.get(name) or self._fleet[name].address

    async def _assign(self, wishes: RoutingRequest) -> Assignment:
        return self._router.assign_now(wishes)

    def _lost(self, gone: EndpointInfo) -> None:
        """Unlist devices at a lost address until they register again, as scheduler and router do."""
        if gone.device and self._directory.lost(gone.name, gone.address, 0.0):
            self._router.see(self._directory.snapshot)

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        return await self.peers.engine(endpoint.address, endpoint.engine)

    async def answers(
        self, mode: str, prompts: Prompts, faults: Sequence[Callable[[], None]] = ()
    ) -> list[Answer]:
        """All at once. A fault comes when all streams have got WELL_BEGUN tokens since the last, or their end."""
        waiting, got, ended = list(faults), [0] * len(prompts), [False] * len(prompts)

        async def answer(number: int, prompt: tuple[int, ...]) -> Answer:
            wanted, device = MODES[mode]
            job = Job(number + 1, prompt, Sampling(max_tokens=TOKENS), mode=wanted, device=device)
            answer = Answer(prompt, [time.monotonic()])
            async for delta in self.executor.run(job):
                assert answer.finish is None, "nothing follows the last delta"
                answer.ids += delta.ids
                answer.origins += delta.origins
                answer.times_s += [time.monotonic()] * len(delta.ids)
                answer.finish, answer.stats = delta.finish, delta.stats or answer.stats
                got[number] += len(delta.ids)
                ended[number] = delta.finish is not None
                if waiting and all(n >= WELL_BEGUN or done for n, done in zip(got, ended, strict=True)):
                    got[:] = [0] * STREAMS
                    waiting.pop(0)()
            return answer

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answer(n, prompt)) for n, prompt in enumerate(prompts)]
        assert not waiting, "the faults have come"
        await self.executor.settled()
        return [task.result() for task in tasks]
