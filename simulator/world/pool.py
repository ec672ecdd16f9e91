"""A group of servers that grows and shrinks as with Ray Serve, by the live pool's own autoscaler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tandem.deployments.pools.autoscaling import EVERY_S, replica_state
from tandem.policies.autoscaling import PoolState
from tandem.simulator.clock import Handle, VirtualLoop
from tandem.simulator.config.servers import TargetGroup
from tandem.simulator.world.server import SimulatedServer


class SimulatedCloud(Protocol):
    """Source of servers. servers: all of them, ended ones included."""

    loop: VirtualLoop

    @property
    def servers(self) -> Sequence[SimulatedServer]: ...

    def add_server(self, g: int) -> SimulatedServer:
        """Add a server of a group, which is up at once."""
        ...

    async def end(self, server: SimulatedServer) -> None:
        """End a server."""
        ...

    def refresh(self) -> None:
        """Tell the router which servers are up."""
        ...

    def waiting(self, pool: str) -> float:
        """Return the requests that wait for a server of the pool."""
        ...


class ServerPool:
    """One group. Every second, while there is anything to decide, it adjusts the number of servers to the
    autoscaler's.

    target: that number, starting ones included.
    """

    def __init__(self, cloud: SimulatedCloud, g: int, group: TargetGroup, places: int) -> None:
        """g: the group's number; places: most sessions in a step."""
        assert group.autoscaling is not None
        self._cloud, self._g, self._group, self._places = cloud, g, group, places
        self._autoscaler = group.autoscaling.autoscaler()
        self._least = group.autoscaling.min_replicas
        self.target = group.initial_count
        self._starting: list[tuple[float, Handle]] = []  # since when, oldest first
        self._draining: dict[SimulatedServer, float] = {}  # until when at most
        self._since_s: dict[SimulatedServer, float] = {server: 0.0 for server in self.up}
        self._spent_s = 0.0  # by ended ones
        self._deciding: Handle | None = None

    @property
    def up(self) -> list[SimulatedServer]:
        """Servers that take requests, oldest first."""
        return [server for server in self._cloud.servers if server.group == self._g and server.up]

    def replica_s(self) -> float:
        """Return the total seconds of servers' lives, starting and draining ones included."""
        now_s = self._cloud.loop.time()
        there = (*self._since_s.values(), *(since_s for since_s, _ in self._starting))
        return self._spent_s + sum(now_s - since_s for since_s in there)

    def wake(self) -> None:
        """Schedule a decision."""
        if self._deciding is None:
            self._deciding = self._cloud.loop.call_later(EVERY_S, self._decide)

    def _decide(self) -> None:
        self._deciding = None
        self._let_go()
        now_s, up, waiting = self._cloud.loop.time(), self.up, self._cloud.waiting(self._group.pool)
        for server in up:  # another may have been added
            self._since_s.setdefault(server, now_s)
        states = tuple(replica_state(s.endpoint.name, s.stats(), self._places) for s in up)
        self.target = self._autoscaler.decide(PoolState(now_s, self.target, states, waiting))
        self._follow_target()
        busy = waiting or self._starting or self._draining or any(server.open_sessions for server in up)
        if busy or self.target > self._least:
            self.wake()

    def _follow_target(self) -> None:
        """Start missing servers, also in place of dead ones; drain surplus ones, the newest first."""
        missing = self.target - len(self.up) - len(self._starting)
        loop = self._cloud.loop
        for _ in range(missing):
            self._starting.append((loop.time(), loop.call_later(self._group.start_s, self._arrive)))
        for _ in range(-missing):
            if self._starting:
                since_s, arrival = self._starting.pop()
                arrival.cancel()
                self._spent_s += loop.time() - since_s
            else:
                self._drain(self.up[-1])

    def _arrive(self) -> None:
        since_s, _ = self._starting.pop(0)
        self._since_s[self._cloud.add_server(self._g)] = since_s
        self._cloud.refresh()

    def _drain(self, server: SimulatedServer) -> None:
        server.up = False
        self._draining[server] = self._cloud.loop.time() + self._group.drain_s
        self._cloud.refresh()

    def _let_go(self) -> None:
        """End drained servers, and those that drained for long enough; stop counting dead ones."""
        now_s = self._cloud.loop.time()
        for server, until_s in list(self._draining.items()):
            if not server.open_sessions or now_s >= until_s:
                del self._draining[server]
                self._forget(server)
                self._cloud.loop.create_task(self._cloud.end(server))
        for server in [server for server in self._since_s if not server.alive]:
            self._forget(server)

    def _forget(self, server: SimulatedServer) -> None:
        if (since_s := self._since_s.pop(server, None)) is not None:
            self._spent_s += self._cloud.loop.time() - since_s
