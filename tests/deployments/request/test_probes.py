"""Probes: which endpoints count as silent, and how often they are asked."""

from __future__ import annotations

import asyncio

from tandem.deployments.request.probes import Probes
from tandem.engine.base import EngineStats, EngineStopped
from tandem.engine.null.engine import NullEngine
from tandem.policies.reader.stall_timeout import PROBE_S
from tests.virtual import run


class Asked(NullEngine):
    """An engine that takes some time to tell its statistics, or fails. asked: how often it was."""

    def __init__(self, takes_s: float, failure: Exception | None = None) -> None:
        super().__init__()
        self.takes_s, self.failure, self.asked = takes_s, failure, 0

    async def stats(self) -> EngineStats:
        self.asked += 1
        await asyncio.sleep(self.takes_s)
        if self.failure is not None:
            raise self.failure
        return await super().stats()


def test_an_engine_that_answers_in_time_is_there() -> None:
    async def main() -> None:
        probes = Probes()
        assert await probes.answers("a", Asked(0.9 * PROBE_S))
        assert not await probes.answers("b", Asked(1.1 * PROBE_S))
        assert asyncio.get_running_loop().time() < 2 * PROBE_S
        assert probes.heard("a", 0.0)
        assert not probes.heard("b", 0.0)

    run(main())


def test_one_that_fails_answers_too() -> None:
    async def main() -> None:
        assert await Probes().answers("a", Asked(0.1, EngineStopped("it is closed")))

    run(main())


def test_many_that_wait_share_a_probe_and_one_that_leaves_does_not_end_it() -> None:
    async def main() -> None:
        probes, engine = Probes(), Asked(0.5)
        asking = [asyncio.ensure_future(probes.answers("a", engine)) for _ in range(50)]
        await asyncio.sleep(0.1)
        asking.pop().cancel()
        assert all(await asyncio.gather(*asking))
        assert engine.asked == 1
        await probes.answers("a", engine)
        assert engine.asked == 2

    run(main())
