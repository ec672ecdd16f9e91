"""Runs one simulation: sends a workload's requests to a simulated system and records their outcome."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager

from tandem.deployments.request.job import Job
from tandem.engine.base import ContextOverflow, EngineError, EngineStopped, Sampling
from tandem.policies.speculation.window import WindowPolicy
from tandem.simulator import hardware
from tandem.simulator.config.config import Config
from tandem.simulator.config.devices import DeviceModel
from tandem.simulator.config.servers import TargetGroup
from tandem.simulator.results.analysis import Result, Service
from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.workload import Request, build
from tandem.simulator.world.devices import MakeSpeed, SimulatedDevice, TimedSpeed
from tandem.simulator.world.network import frame_bytes
from tandem.simulator.world.server import SimulatedServer
from tandem.simulator.world.world import MakeService, World, as_it_is

logger = logging.getLogger(__name__)

Progress = Callable[[int], None]  # requests finished since the last call


def simulate(
    config: Config,
    progress: Progress | None = None,
    requests: Sequence[Request] | None = None,
    window: Callable[[], WindowPolicy] | None = None,
    speed: MakeSpeed = TimedSpeed,
    service: MakeService = as_it_is,
) -> Result:
    """Run the configuration to its end.

    requests: in order of arrival, in place of the configured workload.
    window: makes a window policy per draft–target pair, in place of the configured one.
    speed: makes a group of devices' speed, in place of the plain one.
    service: wraps a server's engine as its callers see it.
    Raises ConfigError, TraceError or the hardware model's errors before it begins.
    """
    with _collecting_less(), _quiet():
        return _simulate(config, progress or (lambda _: None), requests, window, speed, service)


def _simulate(
    config: Config,
    progress: Progress,
    requests: Sequence[Request] | None,
    window: Callable[[], WindowPolicy] | None,
    speed: MakeSpeed,
    service: MakeService,
) -> Result:
    began = time.perf_counter()
    if requests is None:
        requests = build(config.workload)
    warnings = (group.engine.scheduling_warning for group in config.topology()[0])
    for warning in dict.fromkeys(filter(None, warnings)):
        logger.warning("%s", warning)
    world = World(config, window, speed, service)
    ready = time.perf_counter()
    clients = Clients(world, progress)
    world.loop.run(clients.run(requests))
    return Result(
        config=config,
        answers=clients.answers,
        servers=[_service(server) for server in world.servers],
        loads={pool: loads for pool, loads in world.loads.items() if loads},
        budgets=world.routing.spent(""),
        events=world.loop.events,
        link_waits_s=world.devices.waited_s,
        sent_bytes=world.devices.sent_bytes,
        replica_s=world.replica_s(),
        estimates=_estimates(config),
        setup_s=ready - began,
        run_s=time.perf_counter() - ready,
    )


def _service(server: SimulatedServer) -> Service:
    counters, hardware = server.core.gauges(), server.hardware
    mean_s = hardware.alone_s / max(1, hardware.steps)
    return Service(
        hardware.busy_s,
        counters.steps,
        mean_s,
        max(0.0, hardware.alone_s2 / max(1, hardware.steps) - mean_s**2) ** 0.5,
        counters.preempted,
        server.open_sessions,
    )


class Unreachable(EngineError):
    """The request does not reach the cloud, or the answer does not come back from there."""

    code = "unreachable"


class Clients:
    """Clients that send the requests.

    answers: one per request, in order of arrival.
    """

    def __init__(self, world: World, progress: Progress) -> None:
        self._world, self._progress = world, progress
        self._running: dict[asyncio.Task[None], None] = {}  # for its order
        self.answers: list[SimulatedAnswer] = []

    async def run(self, requests: Sequence[Request]) -> None:
        """Send all requests; return when all have ended and no session is left."""
        if self._world.config.workload.arrival.kind == "closed":
            await self._closed(requests)
        else:
            await self._open(requests)
        await self._world.settled()

    async def _open(self, requests: Iterable[Request]) -> None:
        """Send requests at their arrival times, whatever became of earlier ones."""
        loop, devices = self._world.loop, len(self._world.devices)
        for index, request in enumerate(requests):
            if request.arrival_s > loop.time():
                await asyncio.sleep(request.arrival_s - loop.time())
            owner = index if request.device is None else request.device
            task = loop.create_task(self._ask(request, owner % devices if devices else -1))
            self._running[task] = None
            task.add_done_callback(self._running.__delitem__)
        while self._running:
            await asyncio.wait(self._running)

    async def _closed(self, requests: Sequence[Request]) -> None:
        """Let each user ask again after it has read its last answer and thought, as long as there are requests."""
        arrival, devices = self._world.config.workload.arrival, len(self._world.devices)
        left = iter(requests)

        async def user(number: int) -> None:
            for request in left:
                await self._ask(request, number % devices if devices else -1)
                await asyncio.sleep(arrival.think_s)

        users = min(arrival.users or devices, len(requests))
        await asyncio.gather(*(user(number) for number in range(users)))

    async def _ask(self, request: Request, device: int) -> None:
        world = self._world
        config, loop = world.config, world.loop
        answer = SimulatedAnswer(request, loop.time(), device, config.history)
        self.answers.append(answer)
        mode = request.mode or config.mode
        here = world.devices[device] if device >= 0 and world.forwarded(mode) else None
        job = None
        try:
            job = self._job(request, mode, device)
            answer.number = job.id
            if here is not None:
                await _crosses(here.uplink.there(frame_bytes(request.prompt_tokens)))
            async with aclosing(world.run(job, device)) as deltas:
                async for delta in deltas:
                    answer.stats, seen_s = delta.stats, loop.time()
                    if here is not None:
                        seen_s = await self._seen_s(here, len(delta.ids))
                    answer.append(delta, seen_s)
            if here is not None:
                await asyncio.sleep(answer.ended_s - loop.time())
        except EngineError as error:
            answer.failure, answer.ended_s = error.code, loop.time()
        if job is not None:
            answer.server = world.served.pop(job.id, -1)
        self._progress(1)

    async def _seen_s(self, here: SimulatedDevice, tokens: int) -> float:
        """Return when `tokens` sent now reach a reader at a device. Raises Unreachable.

        On a clear link they are not awaited, which would take a timer each; they arrive even if the link is cut
        meanwhile.
        """
        if here.uplink.is_clear:
            return here.link.down.book(frame_bytes(tokens))
        await _crosses(here.uplink.back(frame_bytes(tokens)))
        return self._world.loop.time()

    def _job(self, request: Request, mode: str | None, device: int) -> Job:
        """Return the job of a request. Raises ContextOverflow, as the application's API does."""
        world = self._world
        room, wanted = world.context - request.prompt_tokens, request.max_tokens
        if room < (wanted or 1):
            raise ContextOverflow(f"{request.prompt_tokens} tokens leave no room in {world.context}")
        prompt = world.script.add(request)
        sampling = Sampling(max_tokens=wanted or room, reader_rate=request.reader_rate)
        names = device >= 0 and not request.fused and mode not in ("cloud", "sketch")
        name = world.devices.name(device) if names else None
        # A policy that compares may use the request's device, and need not.
        if mode is None and name is not None and world.config.router.compares:
            return Job(prompt[0], prompt, sampling, devices=(name,))
        return Job(prompt[0], prompt, sampling, mode, name)


async def _crosses(frame: asyncio.Future[None]) -> None:
    """Wait until a frame has arrived. Raises Unreachable."""
    try:
        await frame
    except EngineStopped:
        raise Unreachable("the device's link is down") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence log messages about re-planned requests; they are in the results."""
    logger = logging.getLogger("tandem.deployments")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _collecting_less() -> Iterator[None]:
    """Collect garbage less often: most objects are freed by reference counting. The world's cycles are collected at
    the end; objects from before never are."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.collect()
        gc.unfreeze()


def _estimates(config: Config) -> dict[str, Mapping[str, str]]:
    """Return the sources of each timer's operators, by "hardware model"; estimates are marked as such."""
    targets, devices = config.topology()
    named: dict[str, Mapping[str, str]] = {}
    groups: list[TargetGroup | DeviceModel] = [
        *targets,
        *(model for group in devices for model in group.models),
    ]
    for group in groups:
        if group.hardware is not None and group.model is not None:
            sources = dict(hardware.timer(group.hardware, group.model, config.data_folder).sources)
            if isinstance(group, TargetGroup):
                sources["batching"] = group.batching_source(config.data_folder)
            named[f"{group.hardware} {group.model}"] = sources
    return named
