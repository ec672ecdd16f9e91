"""A middle in stages: what one stage gives, and as many batches at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.engine.base import Engine, NoCapacity, Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.core.split.middle import MiddleEngine
from tandem.engine.core.split.pipeline import Pipeline, spread
from tandem.engine.split.hidden_states import KINDS, Kind, back, pack, unpack
from tandem.engine.torch.split.bundle import BadBundle
from tandem.engine.torch.split.runner import load_middle, load_pipeline
from tests.engine.torch.split_parts import model_folder
from tests.engine.torch.test_middle import load, parts, start
from tests.engine_contract import FORWARDING, close_ends_it

FIRST, STAGES = 1, 2
CONFIG = EngineConfig(kv_blocks=64, block_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder("llama-untied", tmp_path_factory.mktemp("model"))


@pytest.fixture
async def pipeline(folder: Path) -> AsyncIterator[Pipeline]:
    made = load_pipeline(folder, FIRST, STAGES, CONFIG, threads=1)
    yield made
    await made.close()


@pytest.mark.parametrize("check", FORWARDING, ids=lambda check: check.__name__)
async def test_contract(check: Callable[[Engine, list[int]], Awaitable[None]]) -> None:
    pipeline = Pipeline([start(), start()])
    await check(pipeline, [])
    await pipeline.close()


async def test_closing(tmp_path: Path) -> None:
    def of_all(pipeline: Pipeline) -> list[object]:
        return [part for stage in stages(pipeline) for part in (stage, *parts(stage))]

    await close_ends_it(lambda: Pipeline([start(load(tmp_path)) for _ in range(STAGES)]), [], of_all)


@pytest.mark.parametrize("kind", KINDS)
async def test_it_gives_what_one_stage_gives(kind: Kind, pipeline: Pipeline, folder: Path) -> None:
    """Compare bit by bit: nothing is lost between stages, in whatever kind."""
    whole = load_middle(folder, FIRST, CONFIG, threads=1)
    width = whole.split.hidden
    rng = np.random.default_rng(1)
    rows = [pack(rng.normal(size=(n, width)).astype(np.float32), kind) for n in (7, 5, 1, 4)]
    # chunks that follow one another, then rounds that go back
    steps = [(0, 0, 0), (7, 1, 0), (12, 2, 1), (11, 3, 4), (3, 1, 5)]
    given = []
    for engine in (whole, pipeline):
        session = await engine.open([], Sampling(max_tokens=40))
        answers = await asyncio.gather(*(session.forward(at, rows[i], n) for at, i, n in steps[:2]))
        answers += [await session.forward(at, rows[i], n) for at, i, n in steps[2:]]
        given.append([unpack(answer.hidden, width) for answer in answers])
        assert answers[-1].hidden.dtype == back(kind)
        assert all(answer.batch_s > 0 for answer in answers[2:])
        await session.cancel()
    for one, other in zip(*given, strict=True):
        np.testing.assert_array_equal(one, other)
    await whole.close()
    assert (await pipeline.stats()).sessions == 0


def stages(pipeline: Pipeline) -> list[MiddleEngine]:
    return pipeline._stages


async def test_chunks_follow_one_another_through_the_stages(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one has the second chunk, the next has the first; none overtakes another."""
    events: list[tuple[str, int, int]] = []
    session = await pipeline.open([], Sampling(max_tokens=60))
    for number, stage in enumerate(session._stages):
        compute = stage.compute

        async def seen(position: int, *args: Any, number: int = number, compute: Any = compute) -> Any:
            events.append(("begin", number, position))
            computed = await compute(position, *args)
            events.append(("end", number, position))
            return computed

        monkeypatch.setattr(stage, "compute", seen)
    chunk = pack(np.ones((8, stages(pipeline)[0].split.hidden), np.float32), "float32")
    positions = [0, 8, 16, 24]
    await asyncio.gather(*(session.forward(at, chunk, 0) for at in positions))
    for number in range(STAGES):
        for what in ("begin", "end"):
            assert [at for event, stage, at in events if (event, stage) == (what, number)] == positions
    assert events.index(("begin", 1, 0)) < events.index(("end", 0, 8))
    await session.cancel()


async def test_a_session_that_one_stage_refuses_is_open_nowhere(pipeline: Pipeline) -> None:
    last = stages(pipeline)[-1]
    held = [await last.open([], Sampling(max_tokens=4)) for _ in range(last._max_open)]
    with pytest.raises(NoCapacity):
        await pipeline.open([], Sampling(max_tokens=4))
    assert [(await stage.stats()).sessions for stage in stages(pipeline)[:-1]] == [0] * (
        len(stages(pipeline)) - 1
    )
    for session in held:
        await session.cancel()


def test_layers_are_spread_evenly() -> None:
    for first, layers, count in ((1, 4, 3), (2, 12, 4), (2, 12, 3), (0, 5, 5)):
        parts = spread(first, layers, count)
        sizes = [end - begin for begin, end in parts]
        assert (parts[0][0], parts[-1][1], sum(sizes)) == (first, layers, layers - first)
        assert max(sizes) - min(sizes) <= 1


def test_there_is_a_layer_for_each_stage(folder: Path) -> None:
    with pytest.raises(BadBundle, match="2 layers cannot be 3 stages"):
        load_pipeline(folder, FIRST, 3, CONFIG)
