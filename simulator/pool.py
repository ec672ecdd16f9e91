"""A group of servers that grows and shrinks, as Ray Serve would have it do live, by the live pool's own autoscaler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deployments.autoscaling import EVERY_S, replica_state
from deployments.modes.base import VERIFIER
from policies.autoscaling import PoolState
from simulator.clock import Handle

if TYPE_CHECKING:
    from simulator.world import Server, World


class Pool:
    """One group. It decides every second while there is anything to decide.

    target: servers that there are to be, starting ones included.
    """

    def __init__(self, world: World, g: int) -> None:
        group = world.targets[g]
        assert group.autoscaling is not None
        self._world, self._g, self._group = world, g, group
        self._autoscaler = group.autoscaling.autoscaler()
        self._least = group.autoscaling.min_replicas
        self.target = group.initial
        self._starting: list[Handle] = []  # the oldest first
        self._draining: dict[Server, float] = {}  # until when at most
        self._deciding: Handle | None = None
        self._spent_s, self._changed_s = 0.0, 0.0

    @property
    def up(self) -> list[Server]:
        """Those that take requests, the oldest first."""
        return [server for server in self._world.servers if server.group == self._g and server.up]

    def replica_s(self) -> float:
        """Seconds that there have been servers, starting and draining ones included, in sum."""
        now_s = self._world.loop.time()
        there = len(self.up) + len(self._starting) + len(self._draining)
        return self._spent_s + there * (now_s - self._changed_s)

    def wake(self) -> None:
        """There is something to decide."""
        if self._deciding is None:
            self._deciding = self._world.loop.call_later(EVERY_S, self._decide)

    def _decide(self) -> None:
        self._deciding = None
        world, now_s, up = self._world, self._world.loop.time(), self.up
        for server, until_s in list(self._draining.items()):
            if not server.open_sessions or now_s >= until_s:
                self._note()
                del self._draining[server]
                world.loop.create_task(world.end(server))
        held = world.routing.assigner.missed.pop(VERIFIER, 0)
        places = world.engines[self._g].batch_limit
        states = tuple(replica_state(s.endpoint.name, s.stats(), places) for s in up)
        self._become(self._autoscaler.decide(PoolState(now_s, self.target, states, held)))
        if (
            self.target > self._least
            or self._starting
            or self._draining
            or held
            or any(server.open_sessions for server in up)
        ):
            self.wake()

    def _become(self, target: int) -> None:
        if target == self.target:
            return
        self._note()
        loop, group = self._world.loop, self._group
        for _ in range(target - self.target):
            self._starting.append(loop.call_later(group.start_s, self._arrive))
        for _ in range(self.target - target):  # those that have the least to lose go first
            if self._starting:
                self._starting.pop().cancel()
            else:
                self._drain(self.up[-1])
        self.target = target

    def _arrive(self) -> None:
        self._note()
        self._starting.pop(0)
        self._world.add_server(self._g)
        self._world.refresh()

    def _drain(self, server: Server) -> None:
        server.up = False
        self._draining[server] = self._world.loop.time() + self._group.drain_s
        self._world.refresh()

    def _note(self) -> None:
        """What has been spent until now, before it changes."""
        self._spent_s, self._changed_s = self.replica_s(), self._world.loop.time()
