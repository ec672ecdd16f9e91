"""Answers come from the endpoints that the caller names, however many are under way."""

from __future__ import annotations

import asyncio

import pytest

from tandem.benchmarks.executor import device_record, local_executor, new_job
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.speculative.mode import Speculation
from tandem.deployments.request.job import JobStats, NoSuchDevice
from tandem.engine.base import Sampling
from tandem.engine.null.engine import NullEngine
from tandem.policies.speculation.window import StaticWindow

PROMPT = [20, 21, 22]


async def _answer(
    executor: Executor, mode: str, device: str | None, tokens: int
) -> tuple[list[int], JobStats]:
    ids, stats = list[int](), JobStats()
    async for delta in executor.run(new_job(PROMPT, Sampling(max_tokens=tokens), mode, device)):
        ids += delta.ids
        stats = delta.stats or stats
    return ids, stats


async def test_every_answer_comes_from_its_own_device() -> None:
    engines = {name: NullEngine() for name in ("verifier", "a", "b")}
    executor = local_executor(
        lambda endpoint: engines[endpoint.name],
        StaticWindow,
        devices=[device_record("a"), device_record("b")],
    )
    answers = await asyncio.gather(
        *(_answer(executor, "device", name, 5 + i) for i, name in enumerate("abba"))
    )
    await executor.settled()
    assert [len(ids) for ids, _ in answers] == [5, 6, 7, 8]
    given = {name: await engine.stats() for name, engine in engines.items()}
    assert {name: stats.tokens_generated for name, stats in given.items()} == {
        "verifier": 0,
        "a": 13,
        "b": 13,
    }
    assert {name: stats.opened for name, stats in given.items()} == {"verifier": 0, "a": 2, "b": 2}
    assert {name: stats.sessions for name, stats in given.items()} == {"verifier": 0, "a": 0, "b": 0}


async def test_whoever_drafts_is_the_device_or_the_clouds_own_drafter() -> None:
    engines = {name: NullEngine() for name in ("verifier", "drafter", "a")}
    executor = local_executor(
        lambda endpoint: engines[endpoint.name],
        lambda: StaticWindow(4),
        drafter=True,
        devices=[device_record("a", rtt_s=0.01)],
    )
    for name, helper in (("a", "drafter"), (None, "a")):
        before = (await engines[helper].stats()).opened
        ids, stats = await _answer(executor, "speculative", name, 21)
        assert len(ids) == 21
        assert stats.device == name
        assert Speculation.of(stats).rounds == 4
        assert Speculation.of(stats).fused_rounds == 0
        assert (await engines[helper].stats()).opened == before


async def test_a_device_that_is_not_named_beforehand_is_not_there() -> None:
    executor = local_executor(lambda _: NullEngine(), StaticWindow, devices=[device_record("a")])
    with pytest.raises(NoSuchDevice):
        await _answer(executor, "device", "b", 5)


async def test_two_executors_may_share_an_engine() -> None:
    engine = NullEngine()
    one, two = (local_executor(lambda _: engine, StaticWindow) for _ in range(2))
    (first, _), (second, _) = await asyncio.gather(
        *(_answer(executor, "cloud", None, 6) for executor in (one, two))
    )
    assert first == second
    assert len(first) == 6
