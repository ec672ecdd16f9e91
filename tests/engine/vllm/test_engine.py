"""The vLLM engine on the embedded target, on its own and beside the torch engine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from tandem.engine import family
from tandem.engine.base import Engine, EngineStopped, InvalidRequest, Sampling
from tandem.engine.text.tokenizer import Tokenizer
from tests import engine_contract, model_contract
from tests.engine_contract import exhaust, greedy

if TYPE_CHECKING:
    from tandem.engine.vllm.engine import VllmEngine

pytestmark = [
    pytest.mark.asyncio(loop_scope="package"),
    pytest.mark.vllm,
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    tokenizer = Tokenizer.load(family.path("target"))
    return tokenizer.render_chat([{"role": "user", "content": "Tell me about the town of Marworth."}])


CHECKS = [
    *engine_contract.CHECKS,
    *model_contract.CHECKS,
    model_contract.drawn_drafts_stand_as_often_as_they_may,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
async def test_contract(
    check: Callable[[Engine, list[int]], Awaitable[None]], engine: Engine, prompt: list[int]
) -> None:
    await check(engine, prompt)


@pytest.mark.parametrize("check", engine_contract.GRAMMATICAL, ids=lambda c: c.__name__)
async def test_contract_of_grammars(
    check: Callable[[Engine, Tokenizer], Awaitable[None]], engine: Engine
) -> None:
    await check(engine, Tokenizer.load(family.path("target")))


async def test_what_only_vllm_refuses(engine: Engine, prompt: list[int]) -> None:
    before = (await engine.stats()).sessions
    with pytest.raises(InvalidRequest, match="temperature"):
        await engine.open(prompt, Sampling(temperature=5.0))
    assert (await engine.stats()).sessions == before


async def test_what_is_under_way_when_the_engine_ends_hears_of_it(
    engine: VllmEngine, prompt: list[int]
) -> None:
    session = await engine.open(prompt, greedy(500))
    stream = session.generate()
    await anext(stream)
    waiting = asyncio.create_task(exhaust(stream))
    await asyncio.sleep(0)
    session.fail(EngineStopped("the engine was closed"))
    with pytest.raises(EngineStopped):
        await waiting
    engine.forget(session)
    session._give_up()


async def test_stays_are_told(engine: Engine, prompt: list[int]) -> None:
    before = await engine.stats()
    long = prompt * (before.block_size // len(prompt) + 2)  # more than a block, or none of it is found again
    for _ in range(2):
        await exhaust((await engine.open(long, greedy(6))).generate())
    after = await engine.stats()

    def added(field: str) -> tuple[int, float]:
        old, new = getattr(before.served, field), getattr(after.served, field)
        return sum(new.counts) - sum(old.counts), new.total - old.total

    assert [added(field)[0] for field in ("queue_s", "prefill_s", "inference_s", "preemptions")] == [2] * 4
    assert 0 < added("prefill_s")[1] < added("inference_s")[1]
    assert added("step_tokens")[0] == after.steps - before.steps
    found = after.tokens_from_prefix - before.tokens_from_prefix
    assert after.tokens_queried - before.tokens_queried == 2 * len(long)
    assert 0 < found == 2 * len(long) - added("prefilled")[1]


async def test_a_core_in_a_long_step_leaves_the_counters_as_they_were(
    engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await engine.stats()
    monkeypatch.setattr(engine._core, "stats", asyncio.Event().wait)
    monkeypatch.setattr("tandem.engine.vllm.engine.STATS_S", 0.01)
    assert (await engine.stats()).blocks_total == before.blocks_total > 0
    engine._asking.cancel()


async def test_a_core_whose_process_is_stopped_says_so(
    engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.engine.vllm.engine.STATS_S", 0.05)
    core: Any = engine._core
    pids = [process.pid for process in core._client.resources.engine_manager.processes]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(60):
            while not (await engine.stats()).overdue_s > 0:
                pass
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    async with asyncio.timeout(60):
        while (await engine.stats()).overdue_s:
            pass
