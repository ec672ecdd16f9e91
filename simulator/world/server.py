"""A replica in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.deployments.pools.autoscaling import replica_state
from tandem.deployments.request.assignment import EndpointInfo
from tandem.engine.base import Engine
from tandem.engine.core.engine import CoreEngine
from tandem.engine.core.split.pipeline import Pipeline
from tandem.policies.autoscaling import ReplicaState
from tandem.simulator.engines.engine import Hardware
from tandem.simulator.world.network import Path

if TYPE_CHECKING:
    from tandem.simulator.engines.vllm import TimedVllm


@dataclass(slots=True, eq=False)
class SimulatedServer:
    """A replica of a pool.

    group: index of the configuration's target.
    engine: as its callers reach it.
    hardware: what it computes on, which a drafter may share.
    path: network path to it; None if calls take no time.
    up: whether the scheduler lists it.
    alive: whether it answers.
    """

    group: int
    endpoint: EndpointInfo
    core: CoreEngine | Pipeline | TimedVllm
    engine: Engine
    hardware: Hardware
    path: Path | None = None
    up: bool = True
    alive: bool = True

    @property
    def name(self) -> str:
        return self.endpoint.name

    async def kill(self) -> None:
        """End its process; callers lose the connection."""
        self.up = self.alive = False
        await self.core.close()

    @property
    def hangs(self) -> bool:
        """Whether its engine says that it hangs, so that it is not listed."""
        return isinstance(self.core, CoreEngine) and self.core.overdue_s > 0

    def state(self, places: int) -> ReplicaState:
        """Return what it reports for autoscaling. places: most sessions in a step."""
        stats = self.core.gauges()
        stats.sessions = self.open_sessions
        return replica_state(self.name, stats, places)

    @property
    def open_sessions(self) -> int:
        return self.core.sessions
