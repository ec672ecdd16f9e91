"""A group of servers that grows and shrinks, as Ray Serve would have it do live, by the live pool's own autoscaler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tandem.deployments.pools.autoscaling import EVERY_S, replica_state
from tandem.policies.autoscaling import PoolState
from tandem.simulator.clock import Handle, VirtualLoop
from tandem.simulator.config.servers import TargetGroup
from tandem.simulator.world.server import Server


class Cloud(Protocol):
    """Where servers come from. servers: all of them, those that have gone included."""

    loop: VirtualLoop

    @property
    def servers(self) -> Sequence[Server]: ...

    def add_server(self, g: int) -> Server:
        """One more of a group, as good as up."""
        ...

    async def end(self, server: Server) -> None:
        """It is not needed any more."""
        ...

    def refresh(self) -> None:
        """Tell the router what is up."""
        ...

    def waiting(self, pool: str) -> float:
        """Requests that no server of the pool has yet."""
        ...


class Pool:
    """One group. Every second, while there is anything to decide, it sees to it that there are as many servers as the
    autoscaler would have.

    target: that is how many, starting ones included.
    """

    def __init__(self, cloud: Cloud, g: int, group: TargetGroup, places: int) -> None:
        """g: the group's number; places: sessions that a step takes."""
        assert group.autoscaling is not None
        self._cloud, self._g, self._group, self._places = cloud, g, group, places
        self._autoscaler = group.autoscaling.autoscaler()
        self._least = group.autoscaling.min_replicas
        self.target = group.initial_count
        self._starting: list[tuple[float, Handle]] = []  # since when; the oldest first
        self._draining: dict[Server, float] = {}  # until when at most
        self._since_s: dict[Server, float] = {server: 0.0 for server in self.up}
        self._spent_s = 0.0  # by those that have gone
        self._deciding: Handle | None = None

    @property
    def up(self) -> list[Server]:
        """Those that take requests, the oldest first."""
        return [server for server in self._cloud.servers if server.group == self._g and server.up]

    def replica_s(self) -> float:
        """Seconds that there have been servers, starting and draining ones included, in sum."""
        now_s = self._cloud.loop.time()
        there = (*self._since_s.values(), *(since_s for since_s, _ in self._starting))
        return self._spent_s + sum(now_s - since_s for since_s in there)

    def wake(self) -> None:
        """There is something to decide."""
        if self._deciding is None:
            self._deciding = self._cloud.loop.call_later(EVERY_S, self._decide)

    def _decide(self) -> None:
        self._deciding = None
        self._let_go()
        now_s, up, waiting = self._cloud.loop.time(), self.up, self._cloud.waiting(self._group.pool)
        for server in up:  # somebody else may have added one
            self._since_s.setdefault(server, now_s)
        states = tuple(replica_state(s.endpoint.name, s.stats(), self._places) for s in up)
        self.target = self._autoscaler.decide(PoolState(now_s, self.target, states, waiting))
        self._follow_target()
        busy = waiting or self._starting or self._draining or any(server.open_sessions for server in up)
        if busy or self.target > self._least:
            self.wake()

    def _follow_target(self) -> None:
        """Start what is missing, also in place of what has died; what is too much goes, the newest first."""
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

    def _drain(self, server: Server) -> None:
        server.up = False
        self._draining[server] = self._cloud.loop.time() + self._group.drain_s
        self._cloud.refresh()

    def _let_go(self) -> None:
        """Those that have drained, or for long enough, end; those that are gone cost nothing more."""
        now_s = self._cloud.loop.time()
        for server, until_s in list(self._draining.items()):
            if not server.open_sessions or now_s >= until_s:
                del self._draining[server]
                self._forget(server)
                self._cloud.loop.create_task(self._cloud.end(server))
        for server in [server for server in self._since_s if not server.alive]:
            self._forget(server)

    def _forget(self, server: Server) -> None:
        if (since_s := self._since_s.pop(server, None)) is not None:
            self._spent_s += self._cloud.loop.time() - since_s
