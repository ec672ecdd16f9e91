"""A group of servers that grows and shrinks as with Ray Serve, by the live pool's own autoscaler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from tandem.deployments.pools.autoscaling import EVERY_S
from tandem.policies.autoscaling import Autoscaler, PoolState, ReplicaState
from tandem.simulator.clock import Handle, VirtualLoop
from tandem.simulator.config.servers import TargetGroup


class PooledServer(Protocol):
    """A server of a pool.

    name: unique name.
    group: number of its group.
    up: whether it takes requests.
    alive: whether it answers.
    """

    up: bool

    @property
    def name(self) -> str: ...

    @property
    def group(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    @property
    def open_sessions(self) -> int: ...

    def state(self, places: int) -> ReplicaState:
        """Return what it reports for autoscaling. places: most sessions in a step."""
        ...


S = TypeVar("S", bound=PooledServer)


class SimulatedCloud(Protocol[S]):
    """Source of servers. servers: all of them, ended ones included."""

    loop: VirtualLoop

    @property
    def servers(self) -> Sequence[S]: ...

    def add_server(self, g: int) -> S:
        """Add a server of a group, which is up at once."""
        ...

    async def end(self, server: S) -> None:
        """End a server."""
        ...

    def refresh(self) -> None:
        """Tell the router which servers are up."""
        ...

    def waiting(self, pool: str) -> float:
        """Return the requests that wait for a server of the pool."""
        ...


class ServerPool(Generic[S]):
    """One group. Every second from the first request on it adjusts the number of servers to the autoscaler's, which may
    foresee requests when there are none.

    target: that number, starting ones included.
    """

    def __init__(
        self,
        cloud: SimulatedCloud[S],
        g: int,
        group: TargetGroup,
        places: int,
        autoscaler: Autoscaler | None = None,
    ) -> None:
        """g: the group's number; places: most sessions in a step; autoscaler: in place of the group's."""
        assert group.autoscaling is not None
        self._cloud, self._g, self._group, self._places = cloud, g, group, places
        self._autoscaler = autoscaler or group.autoscaling.autoscaler()
        self.target = group.initial_count
        self._starting: list[tuple[float, Handle]] = []  # since when, oldest first
        self._draining: dict[S, float] = {}  # until when at most
        self._since_s: dict[S, float] = {server: 0.0 for server in self.up}
        self._spent_s = 0.0  # by ended ones
        self._deciding: Handle | None = None

    @property
    def up(self) -> list[S]:
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
        states = tuple(server.state(self._places) for server in up)
        self.target = self._autoscaler.decide(PoolState(now_s, self.target, states, waiting))
        self._follow_target()
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

    def _drain(self, server: S) -> None:
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

    def _forget(self, server: S) -> None:
        if (since_s := self._since_s.pop(server, None)) is not None:
            self._spent_s += self._cloud.loop.time() - since_s
