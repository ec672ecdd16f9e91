"""The live system in virtual time: its router's assigner, its executor and modes, its engines' core, devices and links.

Simulated are how long a step takes (`hardware`), which tokens come (`script`), and the network's delays (`network`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import NamedTuple

import msgspec

from cluster.delayed import Delayed
from cluster.device import Device, DeviceSession
from cluster.latency import LogNormal
from cluster.link import Link, LinkProfile
from cluster.profile import DeviceSpeed
from cluster.registry import DeviceRecord
from deployments.assigner import Assigner
from deployments.directory import Directory
from deployments.experience import Experience, Report
from deployments.modes import MODES
from deployments.modes.base import DEVICE, DRAFTER, VERIFIER, Tools
from deployments.reports import Outbox
from deployments.request.assignment import Assignment, EndpointInfo, RoutingRequest
from deployments.request.executor import Executor
from deployments.request.session import Dial
from deployments.routing import Routing
from engine.base import Engine, EngineInfo, EngineStopped, Sampling
from engine.core.engine import CoreEngine
from policies.collaboration import collaboration
from policies.routing import routing
from policies.window import WindowPolicy, window
from simulator.clock import Handle, VirtualLoop
from simulator.config import Config, DeviceGroup
from simulator.device_model import ScriptedEngine
from simulator.engine import Hardware, timed_engine
from simulator.hardware import StepTimer
from simulator.network import LinkedEngine, Path
from simulator.script import EOS, VOCAB_SIZE, VOCABULARY, Script

HEARTBEAT_S = 1.0  # how often devices register
REFRESH_S = 0.5  # how often the directory learns of loads, as the scheduler's settings have it
NO_EXPIRY_S = float("inf")


class Load(NamedTuple):
    """How many sessions a pool has open at a moment."""

    time_s: float
    sessions: int


@dataclass(slots=True, eq=False)
class Server:
    """A replica of a pool.

    group: of the configuration's targets.
    engine: as it is reached.
    hardware: what it computes on, which a drafter may share.
    up: the scheduler lists it.
    alive: it answers.
    """

    group: int
    endpoint: EndpointInfo
    core: CoreEngine
    engine: Engine
    hardware: Hardware
    up: bool = True
    alive: bool = True

    async def kill(self) -> None:
        """Its process ends: whoever waits for it hears that the connection is lost."""
        self.up = self.alive = False
        await self.core.close()

    @property
    def steps(self) -> int:
        return self.core.counters.steps

    @property
    def preempted(self) -> int:
        return self.core.counters.preempted

    @property
    def open_sessions(self) -> int:
        return self.core.sessions

    @property
    def busy_s(self) -> float:
        return self.hardware.busy_s


class SimulatedDevice:
    """A device, its link, and how it is reached from the cloud."""

    __slots__ = ("device", "link", "path", "uplink")

    def __init__(self, loop: VirtualLoop, device: Device, link: Link) -> None:
        self.device, self.link = device, link
        self.path, self.uplink = Path.to_device(loop, link), Path.to_cloud(loop, link)

    @property
    def open_sessions(self) -> int:
        return self.device.sessions


class Speed:
    """A device's speed from a step timer (`cluster.profile.DeviceSpeed`)."""

    emulated = True
    battery_wh = None

    def __init__(self, name: str, timer: StepTimer, sessions: int, power_w: float) -> None:
        self.name, self.sessions, self.power_w = name, sessions, power_w
        self._timer = timer
        self._step_s: dict[int, float] = {}  # of decoding a token, by context: asked for again and again

    def prefill_s(self, tokens: int) -> float:
        """Seconds to take in so many tokens."""
        return self._timer.step_s(tokens, 1, 0, ((tokens, 0),)) if tokens else 0.0

    def decode_s(self, tokens: int, context: int = 0) -> float:
        """Seconds to produce so many, one by one, after a context of so many."""
        context += tokens // 2
        step_s = self._step_s.get(context)
        if step_s is None:
            step_s = self._step_s[context] = self._timer.step_s(1, 1, context)
        return tokens * step_s


class World:
    """Everything of one configuration, before anything is asked.

    servers: of the verifiers' pool, those that have gone included.
    drafters: of the cloud's own.
    loads: by pool (or DEVICE), how many sessions were open at each refresh.
    served: by request, the index of the server that was assigned last; −1 for none.
    """

    def __init__(self, config: Config, windows: Callable[[], WindowPolicy] | None = None) -> None:
        """windows: makes a window policy per draft–target pair, in place of the configured one."""
        self.config, self.script = config, Script()
        self.loop = VirtualLoop()  # type: ignore[abstract]  # it has no sockets, threads or signals
        self._data = config.data_folder
        self.targets, groups = config.topology()
        self._engines = [group.complete_engine(self._data) for group in self.targets]
        self.servers: list[Server] = []
        self.drafters: list[Server] = []
        self._replicas: dict[str, Server] = {}
        self._numbers: dict[str, int] = {}
        for g, group in enumerate(self.targets):
            for _ in range(group.count):
                self.add_server(g)
        self.devices = Devices(self, groups)
        self.context = min(server.core.info.context for server in self.servers)
        self.served: dict[int, int] = {}
        self.loads: dict[str, list[Load]] = {VERIFIER: [], DRAFTER: [], DEVICE: []}
        self._windows = windows or partial(config.window.create, window)
        self._directory = Directory(NO_EXPIRY_S)
        self._refreshing: Handle | None = None
        self.routing = self.new_router()
        self._outbox = Outbox(self.report)
        self._executors: dict[int, Executor] = {}
        self._reader_at_device = config.reader_at_device
        self._cloud = self._executor(self._dial_from_cloud)
        self.refresh()

    # -- requests ---------------------------------------------------------------------------------------

    def executor(self, mode: str | None, device: int) -> Executor:
        """Who carries a request in a mode, from a device (−1: from nowhere in particular)."""
        if device < 0 or mode is None or not MODES[mode].local or not self._reader_at_device:
            return self._cloud
        executor = self._executors.get(device)
        if executor is None:
            dial = partial(self._dial_from_device, device)
            executor = self._executors[device] = self._executor(dial)
        return executor

    def forwarded(self, mode: str | None) -> bool:
        """Whether a request in that mode, whose reader is at a device, travels to the cloud first."""
        return self._reader_at_device and (mode is None or not MODES[mode].local)

    async def settled(self) -> None:
        """Return when no session is left behind."""
        for executor in (self._cloud, *self._executors.values()):
            await executor.settled()

    def _executor(self, dial: Dial) -> Executor:
        return Executor(
            self.assign,
            dial,
            Tools(self._windows, fused_window=self.config.fused_window),
            self.config.limits.limits(),
            report=self._outbox.add,
            lost=self._lost,
        )

    # -- the router and the scheduler ---------------------------------------------------------------------

    def new_router(self) -> Routing:
        """A router that knows nothing yet."""
        config = self.config
        assigner = Assigner(
            config.router.collaboration.create(collaboration),
            partial(config.router.routing.create, routing),
            max(engine.batch_limit for engine in self._engines),
            Experience(config.racing, Random(config.seed)),
        )
        return Routing(assigner, config.router)

    @property
    def experience(self) -> Experience:
        """What requests have taught the router."""
        return self.routing.assigner.experience

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        """Ask the router."""
        assignment = await self.routing.assign(wanted)
        self.served[wanted.request] = self._server(assignment)
        self.refresh_soon()
        return assignment

    def report(self, reports: Sequence[Report]) -> None:
        """Tell the router what answers have taught."""
        for report in reports:
            self.routing.assigner.take_in(report)

    def refresh_soon(self) -> None:
        """Loads are changing: the router hears of them before long, as from the scheduler."""
        if self._refreshing is None:
            self._refreshing = self.loop.call_later(REFRESH_S, self._refresh_is_due)

    def _refresh_is_due(self) -> None:
        self._refreshing = None
        self.refresh()

    def refresh(self) -> None:
        """What the scheduler does every now and then: list what is up, and tell the router what has changed."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            self._refreshing = None
        directory = self._directory
        for pool, servers in ((VERIFIER, self.servers), (DRAFTER, self.drafters)):
            directory.list_pool(pool, [_with_load(s) for s in servers if s.up])
        directory.register(self.devices.news(), self.loop.time())
        self.routing.see(directory.since(self.routing.assigner.version))
        if self._sample():
            self.refresh_soon()

    def _sample(self) -> bool:
        """Note how many sessions are open; whether any is."""
        now_s, busy = self.loop.time(), False
        pools: dict[str, Collection[Server | SimulatedDevice]] = {
            VERIFIER: self.servers,
            DRAFTER: self.drafters,
            DEVICE: self.devices.busy,
        }
        for pool, members in pools.items():
            if members:
                sessions = sum(member.open_sessions for member in members)
                self.loads[pool].append(Load(now_s, sessions))
                busy = busy or sessions > 0
        return busy

    def _lost(self, gone: EndpointInfo) -> None:
        if gone.device and self._directory.lost(gone.address, self.loop.time()):
            self.devices.forget(gone.name)
            self.loop.call_later(HEARTBEAT_S, self.refresh)
            self.refresh_soon()

    def _server(self, assignment: Assignment) -> int:
        for there in assignment.endpoints.values():
            for endpoint in there:
                if (number := self._numbers.get(endpoint.key)) is not None:
                    return number
        return -1

    # -- the way to engines -------------------------------------------------------------------------------

    async def _dial_from_cloud(self, endpoint: EndpointInfo) -> Engine:
        if endpoint.device:
            there = self.devices.at(endpoint)
            return LinkedEngine(there.device, there.path)
        return self._replica(endpoint).engine

    async def _dial_from_device(self, device: int, endpoint: EndpointInfo) -> Engine:
        if endpoint.device:
            return self.devices.at(endpoint).device
        return LinkedEngine(self._replica(endpoint).engine, self.devices[device].uplink)

    def _replica(self, endpoint: EndpointInfo) -> Server:
        server = self._replicas[endpoint.address]
        if not server.alive:
            raise EngineStopped(f"nobody answers at {endpoint.address}")
        return server

    # -- what there is -----------------------------------------------------------------------------------

    def add_server(self, g: int) -> None:
        """One more server of that group, with the drafter beside it if it has one."""
        group, config, hardware = self.targets[g], self._engines[g], Hardware(self.loop)
        number = len(self.servers)
        core = timed_engine(
            self.loop,
            group.model,
            config,
            group.timer(self._data),
            self.script,
            hardware=hardware,
            context=config.kv_tokens,
            token_bytes=float(group.kv_token_bytes or 0),
            padded=group.padded,
        )
        engine: Engine = core
        if (latency := config.latency) is not None:
            law = LogNormal(median_s=latency.median_s, sigma=latency.sigma)
            engine = Delayed(engine, law, latency.seed * 1_000_003 + self.config.seed * 1009 + number)
        if group.call_s:
            call = Link(LinkProfile(rtt_s=group.call_s))
            engine = LinkedEngine(engine, Path.to_device(self.loop, call))
        endpoint = _endpoint(VERIFIER, number, core.info)
        self._numbers[endpoint.key] = number
        self._add(self.servers, Server(g, endpoint, core, engine, hardware))
        draft_timer = group.draft_timer(self._data)
        if draft_timer is not None:
            draft = timed_engine(
                self.loop,
                group.draft_model or "drafter",
                config.model_copy(update={"scheduling": None, "host_memory": None}),
                draft_timer,
                self.script,
                hardware=hardware,
                context=config.kv_tokens,
                padded=group.padded,
            )
            drafter = _endpoint(DRAFTER, len(self.drafters), draft.info)
            self._add(self.drafters, Server(g, drafter, draft, draft, hardware))

    def _add(self, pool: list[Server], server: Server) -> None:
        pool.append(server)
        self._replicas[server.endpoint.address] = server


class _Watched(Device):
    """A device that tells, by `opened`, that it may have sessions."""

    def __init__(self, engine: Engine, speed: DeviceSpeed, opened: Callable[[], None]) -> None:
        super().__init__(engine, speed)
        self._opened = opened

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> DeviceSession:
        self._opened()
        return await super().open(prompt, sampling, log)


class Devices(Sequence[SimulatedDevice]):
    """Made when first needed: most of a hundred thousand devices may never see a request.

    Groups are mixed evenly, so that the first N requests meet each in proportion.
    """

    def __init__(self, world: World, groups: Sequence[DeviceGroup]) -> None:
        self._world, self._groups = world, groups
        data = world.config.data_folder
        self._speeds = [
            Speed(f"devices-{g}", group.timer(data), group.places, group.watts)
            for g, group in enumerate(groups)
        ]
        shares = sorted((i / group.count, g) for g, group in enumerate(groups) for i in range(group.count))
        self._group_of = [g for _, g in shares]
        self._models = [
            ScriptedEngine(world.script, EngineInfo(speed.name, VOCABULARY, VOCAB_SIZE, 2**31, EOS))
            for speed in self._speeds
        ]
        self._made: dict[int, SimulatedDevice] = {}
        self._watched: dict[int, None] = {}  # those that may have sessions, or something to tell
        self._told: list[int] = []  # sessions of each, as last told
        self._lives: dict[int, int] = {}  # how often a device was restarted
        self._records = [
            _record(speed, group.link.rtt_ms / 1e3) for speed, group in zip(self._speeds, groups, strict=True)
        ]

    def __len__(self) -> int:
        return len(self._group_of)

    def __getitem__(self, index: int) -> SimulatedDevice:  # type: ignore[override]
        made = self._made.get(index)
        if made is None:
            world = self._world
            profile = self._groups[self._group_of[index]].link.profile(world.config.seed * 1_000_003 + index)
            made = self._made[index] = SimulatedDevice(world.loop, self._device(index), Link(profile))
        return made

    @property
    def busy(self) -> Collection[SimulatedDevice]:
        """All that have sessions, and a few others."""
        return [self._made[index] for index in self._watched]

    def _device(self, index: int) -> Device:
        g = self._group_of[index]
        return _Watched(self._models[g], self._speeds[g], partial(self._watched.__setitem__, index, None))

    def at(self, endpoint: EndpointInfo) -> SimulatedDevice:
        """The device at an endpoint. Raises EngineStopped if it is there no more."""
        index = self.number(endpoint.name)
        if endpoint.address != self.address(index):
            raise EngineStopped(f"nobody answers at {endpoint.address}")
        return self[index]

    async def restart(self, index: int) -> None:
        """The device's process ends, and another one takes its place, at another address."""
        made = self[index]
        made.path.cut()
        made.uplink.cut()
        await made.device.close()
        self._lives[index] = self._lives.get(index, 0) + 1
        made.device = self._device(index)
        made.path.heal()
        made.uplink.heal()
        self._tell_anew(index)  # its record has changed

    def forget(self, name: str) -> None:
        """The router takes the device for lost, until it registers again."""
        self._tell_anew(self.number(name))

    def _tell_anew(self, index: int) -> None:
        self._told[index], self._watched[index] = -1, None

    def address(self, index: int) -> str:
        """Where the device is reached now."""
        lives = self._lives.get(index, 0)
        return f"{self.name(index)}#{lives}" if lives else self.name(index)

    def name(self, index: int) -> str:
        return f"device-{index}"

    def number(self, name: str) -> int:
        return int(name.removeprefix("device-"))

    def news(self) -> list[DeviceRecord]:
        """Records of the devices whose loads have changed since the last call: at first of all."""
        if not self._told:
            self._told = [0] * len(self)
            return [self._record(i, 0) for i in range(len(self))]
        changed = []
        for i in list(self._watched):
            made = self[i]
            if (sessions := made.device.sessions) != self._told[i] and not made.path.is_cut:
                self._told[i] = sessions
                changed.append(self._record(i, sessions))
            if sessions == self._told[i] == 0:
                del self._watched[i]
        return changed

    def _record(self, index: int, sessions: int) -> DeviceRecord:
        record = self._records[self._group_of[index]]
        return msgspec.structs.replace(
            record, name=self.name(index), address=self.address(index), sessions=sessions
        )

    @property
    def waited_s(self) -> float:
        """What frames lost to bandwidth and to each other, in sum, seconds."""
        return sum(made.link.up.waited_s + made.link.down.waited_s for made in self._made.values())

    @property
    def sent_bytes(self) -> int:
        """Handed to links, both ways."""
        return sum(made.link.up.sent_bytes + made.link.down.sent_bytes for made in self._made.values())


def _record(speed: Speed, rtt_s: float) -> DeviceRecord:
    """Of any device of that speed."""
    prefill_s = speed.prefill_s(64) / 64
    return DeviceRecord(
        name="",
        address="",
        profile=speed.name,
        model=speed.name,
        vocabulary=VOCABULARY,
        rtt_s=rtt_s,
        capacity=speed.sessions,
        emulated=True,
        prefill_token_s=prefill_s,
        prefill_j=speed.power_w * prefill_s,
        decode_j=speed.power_w * speed.decode_s(1, 64),
    )


def _endpoint(pool: str, number: int, info: EngineInfo) -> EndpointInfo:
    return EndpointInfo(f"{pool} {number}", f"{pool}-{number}", pool, info.model, info.vocabulary)


def _with_load(server: Server) -> EndpointInfo:
    return replace(server.endpoint, sessions=server.open_sessions)
