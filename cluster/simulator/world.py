"""The world a request's process sees: the servers, its device, and the policies that decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster.simulator.core import Simulation
from cluster.simulator.device import Device
from cluster.simulator.log import Log
from cluster.simulator.server import Server
from cluster.simulator.workload import Request
from policies.pair import Pair, Target
from policies.routing import RoutingPolicy
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


class World:
    """window: a window policy for a new draft–target pair; fused_window: γ of a co-located drafter.

    reader_at_device: the reader sits at the device, so that prompt and answer travel over its link (the
    paper's setting); otherwise at the cloud's front door, where the live system's clients connect.
    """

    __slots__ = (
        "_pairs",
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
    ) -> None:
        self.simulation, self.servers = simulation, servers
        self._routing, self._window = routing, window
        self._pairs: dict[tuple[int, int], Pair] = {}
        self._targets = [Target() for _ in servers]
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

    def route(self, task: Task) -> Server:
        """The server that takes a new session of this task."""
        index = self._routing.choose([server.open_sessions for server in self.servers])
        task.log.server = index
        return self.servers[index]
