"""The engine protocol over a core whose runner is no model: the contract, in a thread of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tandem.engine.base import Engine, EngineInfo, HandedOver, HandsOver, Sampling
from tandem.engine.config import EngineConfig, HostMemory, SchedulingChoice
from tandem.engine.core.engine import CoreEngine
from tandem.engine.core.runner import Outcome, Work
from tandem.engine.core.sequence import Sequence
from tandem.engine.core.step import Core
from tandem.engine.core.thread import ThreadDriver
from tests.engine.core.core_driver import EOS, VOCAB
from tests.engine.core.plain_runner import PlainRunner
from tests.engine_contract import CHECKS, close_ends_it

PROMPT = [3, 4, 5]
KV_BLOCKS = 8192  # so large a context that no answer as long as it ends within a test
CONFIGS = {
    "first-come": EngineConfig(kv_blocks=KV_BLOCKS, block_size=4, token_budget=64),
    "buffer-aware": EngineConfig(
        kv_blocks=KV_BLOCKS,
        block_size=4,
        scheduling=SchedulingChoice(name="buffer_aware"),
        max_running=2,
        host_memory=HostMemory(blocks=64),
    ),
}


class SlowRunner(PlainRunner):
    """A model whose answers last longer than a test."""

    def run(self, work: Work, complete: list[Sequence]) -> list[Outcome]:  # type: ignore[override]
        time.sleep(0.01)
        return super().run(work, complete)


def start(config: EngineConfig, runner: type[PlainRunner] = PlainRunner) -> CoreEngine:
    info = EngineInfo("plain", "none", VOCAB, config.kv_tokens, EOS)
    core = Core(runner(config.kv_blocks, config.block_size), config)
    driver = ThreadDriver(core, "engine-plain")
    engine = CoreEngine(core, driver, info)
    driver.start(engine.fail)
    return engine


@pytest.fixture(params=CONFIGS)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[CoreEngine]:
    engine = start(CONFIGS[request.param])
    yield engine
    await engine.close()
    assert not engine._driver.running


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_contract(check: Callable[[Engine, list[int]], Awaitable[None]], engine: CoreEngine) -> None:
    await check(engine, PROMPT)


@pytest.mark.parametrize("config", CONFIGS)
async def test_contract_of_close(config: str) -> None:
    await close_ends_it(lambda: start(CONFIGS[config]), PROMPT, lambda engine: [engine._core.runner])


async def test_only_what_has_nothing_but_waited_is_handed_over() -> None:
    engine = start(EngineConfig(kv_blocks=KV_BLOCKS, block_size=4, max_sessions=1), SlowRunner)
    try:
        assert isinstance(engine, HandsOver)
        sessions = [await engine.open(PROMPT, Sampling(max_tokens=20_000)) for _ in range(4)]
        streams = [session.generate() for session in sessions]
        await anext(streams[0])
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams[1:]]
        engine.hand_over(2)
        for stream in waiting[:2]:
            with pytest.raises(HandedOver):
                await stream
        assert engine.sessions == 2
        engine.hand_over(2)
        with pytest.raises(HandedOver):
            await waiting[2]
        assert (await anext(streams[0])).ids, "the one with a place keeps it"
        assert (engine.sessions, engine.waiting) == (1, 0)
        await sessions[1].cancel()  # as its client does
    finally:
        await engine.close()
