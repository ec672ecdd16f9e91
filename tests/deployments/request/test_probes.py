"""Probes: which endpoints count as silent, and how often they are asked."""

from __future__ import annotations

import asyncio
from math import inf

import msgspec

from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.probes import Probes
from tandem.engine.base import EngineStats, EngineStopped
from tandem.engine.null.engine import NullEngine
from tandem.policies.reader.stall_timeout import PROBE_S
from tests.virtual import run

A, B, DEVICE = (
    EndpointInfo("verifier 0", "a:1", "verifier"),
    EndpointInfo("verifier 1", "b:1", "verifier"),
    EndpointInfo("phone", "c:1", "device", device=True),
)


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
        assert await probes.answers(A, Asked(0.9 * PROBE_S))
        assert not await probes.answers(B, Asked(1.1 * PROBE_S))
        assert asyncio.get_running_loop().time() < 2 * PROBE_S
        assert probes.heard_s(A.key) == 0.9 * PROBE_S
        assert probes.heard_s(B.key) == -inf

    run(main())


def test_one_that_fails_answers_too() -> None:
    async def main() -> None:
        assert await Probes().answers(A, Asked(0.1, EngineStopped("it is closed")))

    run(main())


def test_one_that_says_that_it_hangs_is_not_there_until_it_goes_on() -> None:
    class Hung(NullEngine):
        overdue_s = 1.0

        async def stats(self) -> EngineStats:
            return msgspec.structs.replace(await super().stats(), overdue_s=self.overdue_s)

    async def main() -> None:
        probes, engine = Probes(), Hung()
        assert not await probes.answers(A, engine)
        assert probes.heard_s(A.key) == -inf
        engine.overdue_s = 0.0
        assert await probes.answers(A, engine)

    run(main())


def test_many_that_wait_share_a_probe_and_one_that_leaves_does_not_end_it() -> None:
    async def main() -> None:
        probes, engine = Probes(), Asked(0.5)
        asking = [asyncio.ensure_future(probes.answers(A, engine)) for _ in range(50)]
        await asyncio.sleep(0.1)
        asking.pop().cancel()
        assert all(await asyncio.gather(*asking))
        assert engine.asked == 1
        await probes.answers(A, engine)
        assert engine.asked == 2

    run(main())


def test_a_silent_engine_is_not_waited_for_again_until_its_answer_comes() -> None:
    async def main() -> None:
        loop, probes, engine = asyncio.get_running_loop(), Probes(), Asked(10.0)
        assert not await probes.answers(A, engine)
        assert not await probes.answers(DEVICE, engine)
        assert probes.silent == (A.key,), "only replicas: a device is asked for by its name"
        asked_s = loop.time()
        assert not await probes.answers(A, engine)
        assert loop.time() == asked_s, "it is known to be silent"
        assert engine.asked == 2
        await asyncio.sleep(10.0 - PROBE_S)
        assert not probes.silent
        assert probes.heard_s(A.key) == 10.0
        engine.takes_s = 0.1
        assert await probes.answers(A, engine)

    run(main())


def test_silence_while_it_could_not_be_reached_says_nothing() -> None:
    async def main() -> None:
        loop, probes, engine = asyncio.get_running_loop(), Probes(), Asked(10.0)
        assert not await probes.answers(A, engine)
        await asyncio.sleep(9.0 - PROBE_S)
        assert await probes.answers(A, engine, reached_s=8.5), "it answers the first question after all"
        assert loop.time() == 10.0

    run(main())


def test_one_whose_connection_is_lost_is_no_longer_silent() -> None:
    """The next dial tells whether it is there."""

    async def main() -> None:
        probes = Probes()
        assert not await probes.answers(A, Asked(2 * PROBE_S, EngineStopped("the connection is lost")))
        await asyncio.sleep(PROBE_S)
        assert not probes.silent

    run(main())
