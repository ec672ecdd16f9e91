"""The live system in virtual time: its router's assigner, its executor and modes, its engines' core, devices and links.

Simulated are step times (`hardware`), tokens (`script`), and the network's delays (`network`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from tandem.cluster.link.delayed_engine import Delayed
from tandem.cluster.link.latency import LogNormal
from tandem.cluster.link.link import Link, LinkProfile
from tandem.deployments.learning.report import Report
from tandem.deployments.modes import MODES
from tandem.deployments.modes.base import Services
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.sections import section
from tandem.deployments.outbox import Outbox
from tandem.deployments.request.assignment import Assignment, EndpointInfo, Load, Present, RoutingRequest
from tandem.deployments.request.job import Delta, Job
from tandem.deployments.request.pools import DEVICE, DRAFTER, MIDDLE, VERIFIER
from tandem.deployments.request.session import Dial, Reach
from tandem.deployments.request.timeouts import always
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Directory
from tandem.deployments.routing.routing import Routing
from tandem.engine import vllm
from tandem.engine.base import Engine, EngineInfo, EngineStopped
from tandem.engine.config import Given
from tandem.engine.core.engine import CoreEngine
from tandem.engine.core.split.pipeline import Pipeline
from tandem.engine.split.base import OuterEngine
from tandem.policies.autoscaling.handover import ReplicaQueue, handed_over, room
from tandem.policies.speculation.window import WindowPolicy
from tandem.simulator.clock import Handle, VirtualLoop
from tandem.simulator.config.config import Config
from tandem.simulator.config.modes import SketchConfig, SplitConfig, settings_of_modes
from tandem.simulator.config.servers import ServerEngine, TargetGroup, TimedVllmConfig
from tandem.simulator.engines.engine import Compute, Hardware, timed_engine
from tandem.simulator.engines.script import Script
from tandem.simulator.engines.sketch import ScriptedFormat
from tandem.simulator.engines.split import timed_middle
from tandem.simulator.world.devices import Devices, MakeSpeed, SimulatedDevice, TimedSpeed
from tandem.simulator.world.network import LinkedEngine, Path
from tandem.simulator.world.pool import ServerPool
from tandem.simulator.world.server import SimulatedServer

if TYPE_CHECKING:
    from tandem.simulator.engines.vllm import TimedVllm

HEARTBEAT_S = 1.0  # how often devices register
REFRESH_S = 0.5  # how often the directory learns of loads, as the scheduler's settings have it
NO_EXPIRY_S = float("inf")


MakeService = Callable[[Engine], Engine]


def as_it_is(engine: Engine) -> Engine:
    """Return the engine itself."""
    return engine


class ReplicaLoad(NamedTuple):
    """Number of open sessions of a pool at a moment."""

    time_s: float
    sessions: int


class World:
    """Simulated system of one configuration, before the first request.

    engines: of the groups of targets, complete.
    servers: of the groups of targets, those that have gone included.
    pools: the groups that grow and shrink.
    drafters: of the cloud's own.
    loads: by pool (or DEVICE), how many sessions were open at each refresh.
    served: by request, the index of the server that was assigned last; −1 for none.
    """

    def __init__(
        self,
        config: Config,
        windows: Callable[[], WindowPolicy] | None = None,
        speed: MakeSpeed = TimedSpeed,
        service: MakeService = as_it_is,
    ) -> None:
        """windows: makes a window policy per draft–target pair, in place of the configured one.
        speed: makes a group of devices' speed, in place of the plain one.
        service: wraps a server's engine as its callers see it.
        """
        self.config, self.script, self._service = config, Script(), service
        self.loop = VirtualLoop()  # type: ignore[abstract]  # it has no sockets, threads or signals
        self._data = config.data_folder
        self.targets, groups = config.topology()
        self.engines = [group.complete_engine(self._data) for group in self.targets]
        self.servers: list[SimulatedServer] = []
        self.drafters: list[SimulatedServer] = []
        self._replicas: dict[str, SimulatedServer] = {}
        self._numbers: dict[str, int] = {}
        for g, group in enumerate(self.targets):
            for _ in range(group.initial_count):
                self.add_server(g)
        self.devices = Devices(self.loop, self.script, config, groups, speed)
        self.context = min(_context(engine) for engine in self.engines)
        if config.split_info is not None:
            self.context = min(self.context, section(config, SplitConfig).engine.kv_tokens)
        self.served: dict[int, int] = {}
        self.loads: dict[str, list[ReplicaLoad]] = {VERIFIER: [], MIDDLE: [], DRAFTER: [], DEVICE: []}
        if windows is not None:
            config = config.model_copy(update={"window": Given(windows)})
        self._modes = settings_of_modes(config, self.devices.models)
        self._directory = Directory(NO_EXPIRY_S)
        self._refreshing: Handle | None = None
        self.restart_router()
        shape = section(config, SketchConfig).shape(config.workload.seed)
        self._services = Services(self.ask, self.tell, format=ScriptedFormat(self.script, shape))
        self._outbox = Outbox(self.report)
        self._executors: dict[int, Executor] = {}
        self._reader_at_device = config.reader_at_device
        self._cloud = self._executor(self._dial_from_cloud)
        self.pools = [
            ServerPool(self, g, group, self.engines[g].batch_limit)
            for g, group in enumerate(self.targets)
            if group.autoscaling is not None
        ]
        self.refresh()

    # -- requests ---------------------------------------------------------------------------------------

    def executor(self, mode: str | None, device: int) -> Executor:
        """Return the executor of a request in a mode, from a device (−1: from no device)."""
        if device < 0 or mode is None or not MODES[mode].local or not self._reader_at_device:
            return self._cloud
        executor = self._executors.get(device)
        if executor is None:
            dial, here = partial(self._dial_from_device, device), self.devices[device]
            executor = self._executor(dial, here.outer, lambda: here.uplink.reached_s)
            self._executors[device] = executor
        return executor

    def run(self, job: Job, device: int) -> AsyncGenerator[Delta, None]:
        """Yield the answer to a job from a device (−1: from no device)."""
        return self.executor(job.mode, device).run(job)

    def forwarded(self, mode: str | None) -> bool:
        """Return whether a request in that mode, whose reader is at a device, travels to the cloud first."""
        return self._reader_at_device and (mode is None or not MODES[mode].local)

    async def settled(self) -> None:
        """Return when no session is left."""
        for executor in (self._cloud, *self._executors.values()):
            await executor.settled()

    def _executor(
        self, dial: Dial, outer: OuterEngine | None = None, reached_s: Callable[[], float] = always
    ) -> Executor:
        made = Executor(
            self.assign,
            Reach(dial, self._lost, reached_s, replaces=self._replaces),
            self._modes,
            replace(self._services, outer=outer),
            self.config.limits.limits(),
            report=self.answered,
            reconsider=self.reconsider,
        )
        made.compares = self.config.router.compares
        return made

    # -- the router and the scheduler ---------------------------------------------------------------------

    def restart_router(self) -> None:
        """Replace the router by one without any state."""
        self.routing = self.new_routing()

    def new_routing(self) -> Routing:
        """Return a router's routing, which knows of nothing."""
        config = self.config
        assigner = Assigner(
            config.router.collaboration.create(),
            config.router.routing.create,
            max(engine.batch_limit for engine in self.engines),
        )
        return Routing(assigner, config.router, config.accounts, self._modes, Random(config.seed))

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        """Ask the router."""
        for pool in self.pools:
            pool.wake()
        assignment = await self.routing.assign(wanted)
        self.assigned(wanted, assignment)
        return assignment

    async def reconsider(self, wanted: RoutingRequest, present: Present) -> Assignment | None:
        """Ask the router for another way to go on, as Routing.reconsider."""
        made = self.routing.reconsider(wanted, present)
        if made is not None:
            self.assigned(wanted, made)
        return made

    def assigned(self, wanted: RoutingRequest, assignment: Assignment) -> None:
        """Note where a request goes."""
        self.served[wanted.request] = self._server(assignment)
        self.refresh_soon()

    async def ask(self, mode: str, question: object) -> Any:
        """Ask a mode's part at the router, see Routing.ask."""
        return await self.routing.ask(mode, question)

    def tell(self, mode: str, said: object) -> None:
        """Tell a mode's part at the router, see Routing.tell."""
        self.routing.tell(mode, said)

    async def end(self, server: SimulatedServer) -> None:
        """End a server and the drafter beside it."""
        await server.kill()
        for drafter in self.drafters:
            if drafter.hardware is server.hardware:
                await drafter.kill()

    def waiting(self, pool: str) -> float:
        """Return the requests that wait for a server of the pool."""
        return self.routing.take_waiting()[pool]

    def replica_s(self) -> float:
        """Return the total seconds of servers' lives, without drafters."""
        fixed = sum(group.count for group in self.targets if group.autoscaling is None)
        return fixed * self.loop.time() + sum(pool.replica_s() for pool in self.pools)

    def answered(self, report: Report) -> None:
        """Have an answer reported to the router soon."""
        self._outbox.add(report)

    def report(self, reports: Sequence[Report]) -> None:
        """Report to the router what answers have taught."""
        for report in reports:
            self.routing.learn(report)

    def refresh_soon(self) -> None:
        """Schedule a refresh because loads are changing, as the live scheduler does."""
        if self._refreshing is None:
            self._refreshing = self.loop.call_later(REFRESH_S, self._refresh_is_due)

    def _refresh_is_due(self) -> None:
        self._refreshing = None
        self.refresh()

    def refresh(self) -> None:
        """Do the scheduler's periodic work: list what is up, and report changes to the router."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            self._refreshing = None
        directory = self._directory
        for pool, servers in self._members().items():
            up = [server for server in servers if server.up and not server.hangs]
            directory.list_pool(pool, [self._listed(server) for server in up])
            self._hand_over(up)
        directory.register(self.devices.news(), self.loop.time())
        self.routing.see(directory.since(self.routing.assigner.version), self.loop.time())
        if self._sample():
            self.refresh_soon()

    def _listed(self, server: SimulatedServer) -> EndpointInfo:
        """Return a server with its sessions, and all of its load where the router's policy asks for that."""
        load, sessions = server.endpoint.load, server.open_sessions
        if self.config.router.compares:
            load = Load.of(server.core.gauges(), self.engines[server.group].batch_limit)
        return replace(server.endpoint, sessions=sessions, load=load)

    def _hand_over(self, servers: Sequence[SimulatedServer]) -> None:
        """Have sessions go where there is room, as the live scheduler does."""
        cores = {server.name: server.core for server in servers if isinstance(server.core, CoreEngine)}
        if len(cores) < 2 or not any(core.waiting for core in cores.values()):
            return
        queues: dict[str, ReplicaQueue] = {}
        for server in servers:
            if (core := cores.get(server.name)) is not None:
                places, free = self.engines[server.group].batch_limit, core.blocks_total - core.blocks_used
                left = room(places, core.sessions, core.waiting, free, core.blocks_total)
                queues[server.name] = ReplicaQueue(core.waiting, left)
        for name, count in handed_over(queues).items():
            cores[name].hand_over(count)

    def _sample(self) -> bool:
        """Record the open sessions; return whether there are any."""
        now_s, busy = self.loop.time(), False
        pools: dict[str, Collection[SimulatedServer | SimulatedDevice]] = {
            **self._members(),
            DEVICE: self.devices.busy,
        }
        for pool, members in pools.items():
            if members:
                sessions = sum(member.open_sessions for member in members)
                self.loads[pool].append(ReplicaLoad(now_s, sessions))
                busy = busy or sessions > 0
        return busy

    def _members(self) -> dict[str, Sequence[SimulatedServer]]:
        """Servers by pool."""
        pools = {VERIFIER: list[SimulatedServer](), MIDDLE: list[SimulatedServer]()}
        for server in self.servers:
            pools[self.targets[server.group].pool].append(server)
        return {**pools, DRAFTER: self.drafters}

    def _lost(self, gone: EndpointInfo) -> None:
        if gone.device and self._directory.lost(gone.name, gone.address, self.loop.time()):
            self.devices.forget(gone.name)
            self.loop.call_later(HEARTBEAT_S, self.refresh)
            self.refresh_soon()

    async def _replaces(self, endpoint: EndpointInfo) -> bool:
        return (await self.routing.snapshot(devices=False)).replaces(endpoint)

    def _server(self, assignment: Assignment) -> int:
        for endpoint in assignment.endpoints.values():
            if (number := self._numbers.get(endpoint.key)) is not None:
                return number
        return -1

    # -- paths to engines -------------------------------------------------------------------------------

    async def _dial_from_cloud(self, endpoint: EndpointInfo) -> Engine:
        if endpoint.device:
            return LinkedEngine(self.devices.engine(endpoint), self.devices.at(endpoint).path)
        return self._replica(endpoint).engine

    async def _dial_from_device(self, device: int, endpoint: EndpointInfo) -> Engine:
        if endpoint.device:
            return self.devices.engine(endpoint)
        return LinkedEngine(self._replica(endpoint).engine, self.devices[device].uplink)

    def _replica(self, endpoint: EndpointInfo) -> SimulatedServer:
        server = self._replicas[endpoint.address]
        if not server.alive:
            raise EngineStopped(f"nothing answers at {endpoint.address}")
        return server

    # -- servers -----------------------------------------------------------------------------------

    def add_server(self, g: int) -> SimulatedServer:
        """Add a server of that group, with a drafter beside it if the group has one."""
        group, config, hardware = self.targets[g], self.engines[g], Hardware(self.loop)
        number = len(self.servers)
        core: CoreEngine | Pipeline | TimedVllm
        if group.first is None:
            compute = Compute(hardware, group.timer(self._data), group.padded)
            core = self._timed(group, config, group.model, compute)
        else:
            core = self._middle(group, config, hardware)
        engine = self._service(core)
        path: Path | None = None
        if (latency := config.latency) is not None:
            law = LogNormal(median_s=latency.median_s, sigma=latency.sigma)
            engine = Delayed(engine, law, latency.seed * 1_000_003 + self.config.seed * 1009 + number)
        if group.call_s:
            path = Path.to_device(self.loop, Link(LinkProfile(rtt_s=group.call_s)))
            engine = LinkedEngine(engine, path)
        endpoint = _endpoint(group.pool, number, core.info)
        self._numbers[endpoint.key] = number
        server = SimulatedServer(g, endpoint, core, engine, hardware, path)
        self._add(self.servers, server)
        self.add_drafter(g, hardware)
        return server

    def add_drafter(self, g: int, hardware: Hardware) -> None:
        """Add a drafter beside a server of that group, if it has one."""
        group, config = self.targets[g], self.engines[g].as_drafter()
        timer = group.draft_timer(self._data)
        if timer is None:
            return
        compute = Compute(hardware, timer, group.padded)
        core = self._timed(group, config, group.draft_model or "drafter", compute, drafts=True)
        endpoint = _endpoint(DRAFTER, len(self.drafters), core.info)
        self._add(self.drafters, SimulatedServer(g, endpoint, core, core, hardware))

    def _timed(
        self,
        group: TargetGroup,
        config: ServerEngine,
        model: str,
        compute: Compute,
        drafts: bool = False,
    ) -> CoreEngine | TimedVllm:
        """Return an engine of the configured kind. drafts: whether it is a drafter."""
        token_bytes = float(group.kv_token_bytes or 0)
        if isinstance(config, TimedVllmConfig):
            vllm.set_environment()
            from tandem.simulator.engines.vllm import (
                HostLink,
                timed_vllm,
            )  # imports vLLM: only where simulated

            link = HostLink(token_bytes, config.copy_mb_per_s) if config.copy_mb_per_s else None
            return timed_vllm(model, config, compute, self.script, drafts=drafts, memory=link)
        return timed_engine(
            model, config, compute, self.script, context=config.kv_tokens, token_bytes=token_bytes
        )

    def _middle(self, group: TargetGroup, config: ServerEngine, hardware: Hardware) -> CoreEngine | Pipeline:
        """Return the middle, in one or more stages, the first on that hardware."""
        split = self.config.split_info
        assert split is not None
        assert not isinstance(config, TimedVllmConfig)
        timers = group.stage_timers(self._data)
        stages = [
            timed_middle(
                group.model,
                config,
                Compute(Hardware(self.loop) if number else hardware, timer, group.padded),
                split,
                token_bytes=float(group.kv_token_bytes or 0) / len(timers),
            )
            for number, timer in enumerate(timers)
        ]
        return stages[0] if len(stages) == 1 else Pipeline(stages)

    def _add(self, pool: list[SimulatedServer], server: SimulatedServer) -> None:
        pool.append(server)
        self._replicas[server.endpoint.address] = server


def _context(engine: ServerEngine) -> int:
    """Return the most tokens of prompt and output."""
    limits = (engine.kv_tokens, engine.longest if isinstance(engine, TimedVllmConfig) else None)
    return min(limit for limit in limits if limit is not None)


def _endpoint(pool: str, number: int, info: EngineInfo) -> EndpointInfo:
    return EndpointInfo(
        f"{pool} {number}", f"{pool}-{number}", pool, info.model, info.vocabulary, split=info.split
    )
