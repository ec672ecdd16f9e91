"""Measurement of an engine's speed, which leaves no session behind."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from tandem.app.device.speed import MEASURED_TOKENS, EndsSpeed, Speed, measure, measure_ends
from tandem.engine.null.engine import NullEngine
from tests.engine.torch.split_parts import RANDOM, Parts, model_folder


@pytest.mark.virtual_time
async def test_an_engine_takes_so_long() -> None:
    engine = NullEngine(tokens_per_s=200.0)
    found = await measure(engine, asyncio.get_running_loop().time)
    assert found == Speed(pytest.approx(0.0), pytest.approx(1 / 200.0))
    assert (await engine.stats()).sessions == 0


async def test_two_ends_take_so_long(tmp_path: Path) -> None:
    """Measure ends with and without an adapter, by a clock that is a second later whenever it is read."""
    model = model_folder("llama-untied", tmp_path / "model")
    for adapter in (None, RANDOM):
        parts = Parts.make(model, 2, tmp_path / str(adapter), adapter)
        prompt = min(MEASURED_TOKENS, parts.outer.info.context // 2)
        found = await measure_ends(parts.outer, map(float, count()).__next__)
        assert found == EndsSpeed(1 / (prompt - 1), 1.0, 1.0)
        assert (await parts.outer.stats()).sessions == 0
        await parts.close()
