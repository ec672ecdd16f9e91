"""A service's latency in front of an engine: as drawn, once a session, and never shorter than the engine's own."""

from __future__ import annotations

import time
from random import Random

import msgspec
import numpy as np
import pytest

from cluster.delayed import Delayed
from cluster.latency import LogNormal
from engine.base import Sampling
from engine.null_engine import NullEngine

PROMPT = [5, 6, 7]


async def test_the_first_token_waits_and_the_others_do_not() -> None:
    engine = Delayed(NullEngine(), LogNormal(median_s=0.2))
    began = time.monotonic()
    await engine.open(1, PROMPT, Sampling(max_tokens=8))
    times = [time.monotonic() - began async for _ in engine.generate(1)]
    assert len(times) == 8
    assert times[0] >= 0.2
    assert times[-1] - times[0] < 0.2
    assert (await engine.stats()).emulated
    await engine.cancel(1)


async def test_an_engine_that_takes_longer_anyway_is_not_delayed_further() -> None:
    engine = Delayed(NullEngine(tokens_per_s=10), LogNormal(median_s=0.05))
    began = time.monotonic()
    await engine.open(1, PROMPT, Sampling(max_tokens=1))
    async for _ in engine.generate(1):
        pass
    assert 0.09 < time.monotonic() - began < 0.145
    await engine.cancel(1)


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
