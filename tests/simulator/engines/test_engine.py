"""The live core in virtual time: the contract of all engines, step times, sharing of hardware, determinism."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from operator import attrgetter
from typing import Any

import pytest

from tandem.engine.base import Engine, NoCapacity, Sampling
from tandem.engine.config import EngineConfig, HostMemory, SchedulingChoice
from tandem.engine.core.engine import CoreEngine
from tandem.simulator.clock import VirtualLoop
from tandem.simulator.engines.engine import Compute, Hardware, timed_engine
from tandem.simulator.engines.script import EOS, TOKEN, Script
from tandem.simulator.workload import Request
from tests.engine_contract import CHECKS, close_ends_it
from tests.simulator.timers import Linear

CONFIG = EngineConfig(kv_blocks=64, block_size=4, token_budget=64, max_sessions=32)


class World:
    """A loop, a script, and engines on them."""

    def __init__(self) -> None:
        self.loop, self.script = VirtualLoop(), Script()  # type: ignore[abstract]

    def engine(
        self, config: EngineConfig = CONFIG, hardware: Hardware | None = None, **timer: float
    ) -> CoreEngine:
        compute = Compute(hardware or Hardware(self.loop), Linear(**timer))
        return timed_engine("timed", config, compute, self.script, context=256, token_bytes=1000.0)

    def prompt(self, tokens: int = 8, output: int = 1000, acceptance: bytes | None = None) -> list[int]:
        return list(self.script.add(Request(0.0, tokens, output, acceptance)))

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run(main)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract(check):
    world = World()
    world.run(check(world.engine(), world.prompt()))


def test_contract_of_close() -> None:
    world = World()
    parts = attrgetter("_core", "_core.runner", "_driver")
    world.run(close_ends_it(world.engine, world.prompt(), parts, step_s=1.0))


async def answer(
    engine: Engine, prompt: list[int], sampling: Sampling
) -> tuple[list[int], str | None, list[float]]:
    loop, ids, times = asyncio.get_running_loop(), [], []
    session = await engine.open(prompt, sampling)
    finish = None
    async for tokens in session.generate():
        ids += tokens.ids
        times.append(loop.time())
        finish = tokens.finish
    await session.cancel()
    return ids, finish, times


def test_a_step_takes_what_the_timer_says():
    world = World()
    ids, finish, times = world.run(
        answer(world.engine(step=1.0, token=0.1), world.prompt(8, output=4), Sampling(max_tokens=100))
    )
    assert ids == [TOKEN, TOKEN + 1, TOKEN + 2, EOS]
    assert finish == "stop"
    assert times == pytest.approx([1.8, 2.9, 4.0, 5.1])  # 8 positions, then one at a time


def test_max_tokens_ends_an_answer_before_its_script_does():
    world = World()
    ids, finish, _ = world.run(answer(world.engine(), world.prompt(8, output=50), Sampling(max_tokens=3)))
    assert (ids, finish) == ([TOKEN, TOKEN + 1, TOKEN + 2], "length")


def test_drafts_stand_as_the_acceptance_sequence_says():
    async def main() -> list[tuple[int, int]]:
        target, drafter = world.engine(), world.engine()
        prompt = world.prompt(8, output=9, acceptance=bytes([1, 1, 0, 1, 1, 1, 1, 1, 1]))
        t = await target.open(prompt, Sampling(max_tokens=100))
        d = await drafter.open(prompt, Sampling(max_tokens=100))
        log, known, rounds, verdict = [], 0, [], await t.verify([])
        log += verdict.ids
        while verdict.finish is None:
            draft = await d.draft(known, log[known:], 3)
            known = len(log)
            verdict = await t.verify(draft.ids)
            log += verdict.ids
            rounds.append((len(draft.ids), verdict.accepted))
        assert log == [*range(TOKEN, TOKEN + 8), EOS]
        return rounds

    world = World()
    # positions 1, 2, 3 | 3, 4, 5 | 7, 8, where the drafter ends the answer itself
    assert world.run(main()) == [(3, 1), (3, 3), (2, 2)]


def test_engines_share_their_hardware():
    """Each step takes twice as long while both engines compute, and no engine starves the other."""

    async def main() -> list[list[float]]:
        hardware = Hardware(world.loop)
        engines = [world.engine(hardware=hardware, step=1.0, token=0.0) for _ in range(2)]
        done = await asyncio.gather(
            *(
                answer(engine, world.prompt(2, output=output), Sampling(max_tokens=9))
                for engine, output in zip(engines, (4, 2), strict=True)
            )
        )
        assert hardware.busy_s == pytest.approx(6.0)
        return [times for _, _, times in done]

    world = World()
    # once the second has ended, the first has the hardware to itself
    assert world.run(main()) == [pytest.approx([2.0, 4.0, 5.0, 6.0]), pytest.approx([2.0, 4.0])]


@pytest.mark.parametrize("scheduling", [None, "fcfs", "buffer_aware", "andes"])
def test_under_pressure_all_come_to_their_end_the_same_way_each_time(scheduling):
    def once() -> list[Any]:
        world = World()
        config = EngineConfig(
            kv_blocks=24,
            block_size=4,
            token_budget=32,
            max_sessions=8,
            max_waiting=100,
            scheduling=scheduling and SchedulingChoice(name=scheduling),
            host_memory=HostMemory(blocks=64, copy_mb_per_s=1.0),
        )

        async def main() -> list[Any]:
            engine = world.engine(config, step=0.01, token=1e-4)
            answers = await asyncio.gather(
                *(
                    answer(engine, world.prompt(5 + i % 7, output=20 + i), Sampling(60, reader_rate=5.0 + i))
                    for i in range(20)
                )
            )
            stats = await engine.stats()
            assert stats.preempted > 0 if scheduling in (None, "buffer_aware") else stats.decisions > 0
            assert (stats.sessions, stats.blocks_free) == (0, 24)
            return [answers, stats.preempted, world.loop.events]

        return world.run(main())

    first = once()
    assert [len(ids) for ids, _, _ in first[0]] == [20 + i for i in range(20)]
    assert once() == first


def test_one_beyond_all_places_is_refused():
    async def main() -> None:
        engine = world.engine(CONFIG.model_copy(update={"max_sessions": 1, "max_waiting": 1}))
        sessions = [await engine.open(world.prompt(), Sampling(max_tokens=9)) for _ in range(2)]
        with pytest.raises(NoCapacity):
            await engine.open(world.prompt(), Sampling(max_tokens=9))
        for session in sessions:
            await session.cancel()

    world = World()
    world.run(main())
