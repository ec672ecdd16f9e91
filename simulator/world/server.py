"""A replica in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.deployments.request.assignment import EndpointInfo
from tandem.engine.base import Engine, EngineStats
from tandem.engine.core.engine import CoreEngine
from tandem.engine.core.split.pipeline import Pipeline
from tandem.simulator.engines.engine import Hardware
from tandem.simulator.world.network import Path

if TYPE_CHECKING:
    from tandem.simulator.engines.vllm import TimedVllm


@dataclass(slots=True, eq=False)
class Server:
    """A replica of a pool.

    group: of the configuration's targets.
    engine: as it is reached.
    hardware: what it computes on, which a drafter may share.
    path: the way there, where calls take time; None where they take none.
    up: the scheduler lists it.
    alive: it answers.
    """

    group: int
    endpoint: EndpointInfo
    core: CoreEngine | Pipeline | TimedVllm
    engine: Engine
    hardware: Hardware
    path: Path | None = None
    up: bool = True
    alive: bool = True

    async def kill(self) -> None:
        """Its process ends: whoever waits for it hears that the connection is lost."""
        self.up = self.alive = False
        await self.core.close()

    def stats(self) -> EngineStats:
        """What it tells of itself to whoever scales its pool."""
        stats = self.core.gauges()
        stats.sessions = self.open_sessions
        return stats

    @property
    def open_sessions(self) -> int:
        return self.core.sessions
