"""A service's latency in front of an engine: as drawn, once a session, and never shorter than the engine's own."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from random import Random

import msgspec
import numpy as np
import pytest

from tandem.cluster.link.delayed_engine import Delayed
from tandem.cluster.link.latency import LogNormal
from tandem.engine.base import Engine, Sampling, SessionCancelled
from tandem.engine.null.engine import NullEngine
from tests.engine_contract import operations
from tests.virtual import in_virtual_time, now_s

PROMPT = [5, 6, 7]


async def times_s(engine: Engine, tokens: int) -> list[float]:
    """Return the arrival time of each token, since the session was opened."""
    began_s = now_s()
    s = await engine.open(PROMPT, Sampling(max_tokens=tokens))
    times = [now_s() - began_s async for _ in s.generate()]
    await s.cancel()
    return times


@in_virtual_time
async def test_the_first_token_waits_and_the_others_follow_it_as_at_the_engine() -> None:
    inner = NullEngine(tokens_per_s=10)
    own = await times_s(inner, 8)
    engine = Delayed(inner, LogNormal(median_s=2.0))
    late = await times_s(engine, 8)
    assert late[0] == pytest.approx(2.0)
    assert np.diff(late) == pytest.approx(np.diff(own))
    assert (await engine.stats()).emulated


@in_virtual_time
async def test_a_generate_that_is_closed_while_tokens_are_late_leaves_the_session_free() -> None:
    engine = NullEngine(tokens_per_s=10)
    s = await Delayed(engine, LogNormal(median_s=2.0)).open(PROMPT, Sampling(max_tokens=30))
    async with aclosing(s.generate()) as stream:
        first = await anext(stream)
    await s.extend(len(first.ids), [])
    assert len([tokens async for tokens in s.generate()]) == 29
    await s.cancel()
    assert (await engine.stats()).sessions == 0


@in_virtual_time
async def test_an_engine_that_takes_longer_anyway_is_not_delayed_further() -> None:
    engine = Delayed(NullEngine(tokens_per_s=10), LogNormal(median_s=0.05))
    began_s = now_s()
    s = await engine.open(PROMPT, Sampling(max_tokens=1))
    async for _ in s.generate():
        pass
    assert now_s() - began_s == pytest.approx(0.1)
    await s.cancel()


@in_virtual_time
async def test_cancelling_ends_the_wait() -> None:
    engine = NullEngine()
    for operation in ("verify", "draft", "generate"):
        s = await Delayed(engine, LogNormal(median_s=1000.0)).open(PROMPT, Sampling(max_tokens=8))
        running = asyncio.create_task(operations(s)[operation]())
        await asyncio.sleep(1.0)
        await s.cancel()
        with pytest.raises(SessionCancelled):
            await running
    assert now_s() == 3.0
    assert (await engine.stats()).sessions == 0


def test_times_are_log_normal() -> None:
    latency, random = LogNormal(median_s=0.4, sigma=0.6), Random(3)
    logs = np.log([latency.draw(random) for _ in range(4000)])
    assert np.mean(logs) == pytest.approx(np.log(0.4), abs=0.03)
    assert np.std(logs) == pytest.approx(0.6, rel=0.05)


@pytest.mark.parametrize(
    "bad", [{"median_s": 0.0}, {"median_s": -1.0}, {"median_s": 1.0, "sigma": -0.1}, {"median": 1}]
)
def test_nonsense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(bad, LogNormal)
