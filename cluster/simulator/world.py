"""The world a request's process sees: the servers, its device, and the policies that decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from cluster.latency import LogNormal
from cluster.simulator.core import Simulation
from cluster.simulator.device import Device
from cluster.simulator.log import Log
from cluster.simulator.server import Server
from cluster.simulator.workload import Request
from policies.contest import Contest, Known, Payer
from policies.cost import Costs, PerToken
from policies.pace import Pace
from policies.pair import Pair, Target
from policies.routing import RoutingPolicy
from policies.samples import Latencies, Outputs
from policies.window import WindowPolicy


class Task:
    """One request on its way: what it asks for, the device its reader sits at, and its log."""

    __slots__ = ("device", "log", "request")

    def __init__(self, request: Request, device: Device, log: Log) -> None:
        self.request, self.device, self.log = request, device, log

    def accepted(self, position: int, window: int) -> int:
        """How many of `window` tokens drafted from output `position` on the target accepts: those before the
        first that differs from its own."""
        if window <= 0 or self.request.acceptance is None:
            return 0
        first = self.request.acceptance.find(0, position, position + window)
        return window if first < 0 else first - position


class Rivals:
    """What all races of a world share. They have one payer; each device has a pace of its own."""

    def __init__(self, payer: Payer, server: PerToken, exchange_rate: float) -> None:
        self.known = Known(Latencies(), Pace(), Outputs())
        self._payer, self._server, self._exchange_rate = payer, server, exchange_rate
        self._paces: dict[int, Pace] = {}

    def contest(
        self, number: int, prompt: int, most: int, rate: float, device: Device, coin: float
    ) -> Contest:
        """Of the device with this number; tokens of prompt and answer, the reader's tokens/s, and chance."""
        pace = self._paces.get(number)
        if pace is None:
            pace = self._paces[number] = Pace(0.0, device.prefill_s(64) / 64)
        costs = Costs(self._server, device.joules(), self._exchange_rate)
        return Contest(prompt, most, rate, costs, self._payer, replace(self.known, pace=pace), coin)


class World:
    """window: a window policy for a new draft–target pair; fused_window: γ of a co-located drafter.

    reader_at_device: the reader sits at the device, so that prompt and answer travel over its link (the
    paper's setting); otherwise at the cloud's front door, where the live system's clients connect.
    rivals: of races; latency: what a server's first token takes at least in them.
    """

    __slots__ = (
        "_latency",
        "_pairs",
        "_random",
        "_rivals",
        "_routing",
        "_targets",
        "_window",
        "fused_window",
        "reader_at_device",
        "servers",
        "simulation",
    )

    def __init__(
        self,
        simulation: Simulation,
        servers: Sequence[Server],
        routing: RoutingPolicy,
        window: Callable[[], WindowPolicy],
        *,
        fused_window: int = 4,
        reader_at_device: bool = True,
        rivals: Rivals | None = None,
        latency: LogNormal | None = None,
        seed: int = 0,
    ) -> None:
        self.simulation, self.servers = simulation, servers
        self._routing, self._window = routing, window
        self._pairs: dict[tuple[int, int], Pair] = {}
        self._targets = [Target() for _ in servers]
        self._rivals, self._latency, self._random = rivals, latency, Random(seed)
        self.fused_window, self.reader_at_device = fused_window, reader_at_device

    @property
    def now(self) -> float:
        return self.simulation.now

    def pair(self, task: Task) -> Pair:
        """The draft–target pair of the task's device and server; what it has learnt outlives its requests."""
        key = (task.log.device, task.log.server)
        pair = self._pairs.get(key)
        if pair is None:
            pair = self._pairs[key] = Pair(self._window(), target=self._targets[task.log.server])
        return pair

    def contest(self, task: Task) -> Contest:
        """The race of the task's device and the servers, in a configuration that says what they cost."""
        assert self._rivals is not None
        request, device = task.request, task.device
        return self._rivals.contest(
            task.log.device,
            request.prompt_tokens,
            request.output_tokens,
            request.rate,
            device,
            self._random.random(),
        )

    def finished(self, task: Task) -> None:
        """A race's answer is complete."""
        assert self._rivals is not None
        self._rivals.known.outputs.note(task.log.tokens)

    def latency_s(self) -> float:
        """How long a server's first token takes at least, as drawn for this one."""
        return 0.0 if self._latency is None else self._latency.draw(self._random)

    def route(self, task: Task) -> Server:
        """The server that takes a new session of this task."""
        index = self._routing.choose([server.open_sessions for server in self.servers])
        task.log.server = index
        return self.servers[index]
