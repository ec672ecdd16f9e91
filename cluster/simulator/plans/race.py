"""Mode race (DiSCo): device and server start by plan, the first token wins, the answer may move on while it runs."""

from __future__ import annotations

from cluster.simulator.core import Event, Process
from cluster.simulator.server import Server, Session
from cluster.simulator.world import Task, World
from cluster.tokenlog import Origin
from policies.contest import Contest
from policies.cost import Used
from policies.dispatch import NEVER, Side


def race(world: World, task: Task) -> Process:
    """The live plan (`deployments.plans.race`) in virtual time; nobody fails here."""
    log, contest = task.log, world.contest(task)
    log.used = used = Used()
    first = Event()
    runners: dict[Side, _Runner] = {
        Side.SERVER: _AtServer(world, task, contest, used),
        Side.DEVICE: _AtDevice(world, task, contest, used),
    }
    delays = {Side.SERVER: contest.start.server_s, Side.DEVICE: contest.start.device_s}
    for side, delay_s in delays.items():
        if delay_s != NEVER:
            world.simulation.spawn(_run(world, runners[side], first, delay_s))
    side = yield first
    for other, runner in runners.items():
        if other is not side:
            runner.stop()
    while True:
        log.append(max(runners[side].seen_s, log.last_s if log.tokens else 0.0), 1, runners[side].origin)
        contest.delivered(1, world.now)
        if not log.left:
            break
        if contest.hand_over(side, log.tokens, world.now):
            runners[side].stop()
            side = Side.DEVICE if side is Side.SERVER else Side.SERVER
            log.migrations += 1
            yield from runners[side].first()
        else:
            yield from runners[side].next()
    runners[side].stop()
    world.finished(task)
    yield max(log.last_s, world.now)


def _run(world: World, runner: _Runner, first: Event, delay_s: float) -> Process:
    yield world.now + delay_s
    if first.fired:
        return
    yield from runner.first()
    if not first.fired:
        yield runner.seen_s
    if not first.fired:
        first.fire(runner.side)


class _Runner:
    """One endpoint's part in a race. seen_s: when its newest token reaches the reader."""

    side: Side
    origin: Origin

    def __init__(self, world: World, task: Task, contest: Contest, used: Used) -> None:
        self._world, self._task, self._contest, self._used = world, task, contest, used
        self.seen_s = self._began_s = 0.0
        self._attempt: object = None  # at a first token; another one once it was stopped

    def first(self) -> Process:
        """Take in prompt and log, and give the token after them."""
        self._began_s = self._world.now
        self._attempt = attempt = object()
        self._contest.began(self.side)
        known = self._task.request.prompt_tokens + self._task.log.tokens
        yield from self._first(known, attempt)
        if self._attempt is attempt:
            self._attempt = None
            self._contest.first_token(self.side, known, self.seen_s - self._began_s)

    def next(self) -> Process:
        """Give another token."""
        raise NotImplementedError

    def stop(self) -> None:
        """Compute no further."""
        if self._attempt is not None:
            self._attempt = None
            self._contest.stopped(self.side, self._world.now - self._began_s)

    def _first(self, known: int, attempt: object) -> Process:
        raise NotImplementedError


class _AtServer(_Runner):
    side, origin = Side.SERVER, Origin.CLOUD
    _server: Server | None = None
    _session: Session | None = None

    def _first(self, known: int, attempt: object) -> Process:
        world, task = self._world, self._task
        self._used.server_in += known
        not_before_s = world.now + world.latency_s()
        if world.reader_at_device:
            yield task.device.link.up(world.now, known)
        if self._attempt is not attempt:
            return
        self._server = server = world.route(task)
        self._session = server.open(task.request.rate, task.request.output_tokens)
        yield from server.first_token(self._session, known)
        yield max(world.now, not_before_s)
        if self._attempt is attempt:
            self._give()

    def next(self) -> Process:
        assert self._server is not None
        assert self._session is not None
        yield self._server.work(self._session, 1, 1)
        self._give()

    def _give(self) -> None:
        self._used.server_out += 1
        world = self._world
        self.seen_s = self._task.device.link.down(world.now, 1) if world.reader_at_device else world.now

    def stop(self) -> None:
        super().stop()
        server, self._server = self._server, None
        if server is not None and self._session is not None:
            server.cancel(self._session)


class _AtDevice(_Runner):
    side, origin = Side.DEVICE, Origin.DEVICE
    _held = False
    _done_s = 0.0

    def _first(self, known: int, attempt: object) -> Process:
        world, device = self._world, self._task.device
        self._used.device_in += known
        asked_s = world.now  # to generate
        if (
            not world.reader_at_device
        ):  # the prompt waits at the cloud's front door, and so does who drives it
            opened_s = device.link.down(world.now, known)
            asked_s = device.link.down(device.link.up(opened_s, 0), 0)
            yield opened_s
        yield device.acquire()
        if self._attempt is not attempt:
            device.release()
            return
        self._held = True
        yield max(self._occupy(device.prefill_s(known)), asked_s)
        if self._attempt is not attempt:
            return
        yield self._occupy(device.decode_s(1, known))
        if self._attempt is attempt:
            self._give()

    def next(self) -> Process:
        task = self._task
        yield self._occupy(task.device.decode_s(1, task.request.prompt_tokens + task.log.tokens))
        self._give()

    def _occupy(self, seconds: float) -> float:
        self._done_s = self._task.device.occupy(self._world.now, seconds)
        return self._done_s

    def _give(self) -> None:
        self._used.device_out += 1
        world = self._world
        self.seen_s = world.now if world.reader_at_device else self._task.device.link.up(world.now, 1)

    def stop(self) -> None:
        super().stop()
        if self._held:
            self._held = False
            self._task.device.abandon(self._world.now, self._done_s)
            self._task.device.release()
