"""The middle of a split model: exact rollback, preemption, and nothing that sessions could share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.wire import frames
from tandem.engine.base import EngineInfo, InvalidRequest, Sampling, SplitInfo, Tensor
from tandem.engine.config import BatchingChoice, EngineConfig, HostMemory
from tandem.engine.core.split.middle import MiddleEngine, MiddleSequence
from tandem.engine.core.step import Core
from tandem.engine.core.tasks import ForwardTask
from tandem.engine.torch import weights
from tandem.engine.torch.attention.batch import BatchPiece
from tandem.engine.torch.model import KVPool
from tandem.engine.torch.split.runner import MiddleRunner, TorchMiddle, start_middle
from tandem.engine.torch.weights import Part
from tests.cluster.wire.test_client import served
from tests.engine.torch import tiny_weights
from tests.engine.torch.engines import handled, runner
from tests.engine.torch.place import DEVICE
from tests.engine_contract import FORWARDING, alike, close_ends_it, hidden

Check = Callable[[MiddleEngine, list[int]], Awaitable[None]]
WIDTH, CONTEXT = 16, 128


def load(folder: Path) -> TorchMiddle:
    tiny_weights.write(folder, seed=1, context=CONTEXT)
    return TorchMiddle(weights.load(folder, DEVICE, torch.float32, Part(1, ends=False)))


@cache
def model() -> TorchMiddle:
    with TemporaryDirectory() as folder:
        return load(Path(folder))


def start(part: TorchMiddle | None = None, **config: object) -> MiddleEngine:
    """part: None for one that all tests share."""
    split = SplitInfo("0" * 64, 1, 2, WIDTH)
    info = EngineInfo("tiny", "none", 31, CONTEXT, 2, ("forward",), split)
    settings = EngineConfig(**({"kv_blocks": 64, "block_size": 4} | config))
    return start_middle(part or model(), info, settings, threads=1)


def parts(engine: MiddleEngine) -> list[object]:
    return [engine._core.runner, runner(engine).model]


@pytest.fixture
async def engine() -> AsyncIterator[MiddleEngine]:
    made = start()
    yield made
    await made.close()


@pytest.mark.parametrize("check", FORWARDING, ids=lambda check: check.__name__)
async def test_contract(check: Check, engine: MiddleEngine) -> None:
    await check(engine, [])


@pytest.mark.parametrize("check", FORWARDING, ids=lambda check: check.__name__)
async def test_contract_over_the_wire(check: Check, engine: MiddleEngine) -> None:
    async with served(engine) as (remote, _, _):
        await check(remote, [])


async def test_closing(tmp_path: Path) -> None:
    await close_ends_it(lambda: start(load(tmp_path)), [], parts)


@torch.inference_mode()
def computed(rows: np.ndarray) -> np.ndarray:
    """All of them by a model with an empty cache."""
    pool = KVPool(model().config, 32, 4, DEVICE, torch.float32)
    piece = BatchPiece(rows, 0, range(-(-len(rows) // 4)), len(rows))
    return model().forward(model().batch([piece], pool), pool).cpu().numpy()


steps = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 14), st.integers(0, 14)),
    min_size=1,
    max_size=14,
)
memories = st.sampled_from([None, HostMemory(blocks=4), HostMemory(blocks=64, write_through=False)])


@given(steps, st.integers(0, 10_000), memories)
def test_rollback_is_exact(
    asked: list[tuple[int, int, int, int]], seed: int, memory: HostMemory | None
) -> None:
    """Three sessions go back and forth, in a cache that cannot hold them: what comes back is always what a session
    would give that had never been anywhere else."""
    batching = BatchingChoice(name="chunked", parameters={"chunk": 3})
    config = EngineConfig(kv_blocks=13, block_size=4, token_budget=8, batching=batching, host_memory=memory)
    core = Core(MiddleRunner(model(), 13, 4), config)
    rng = np.random.default_rng(seed)
    sessions = [MiddleSequence(i, [], [], Sampling(max_tokens=40), 2) for i in range(3)]
    held = [np.empty((0, WIDTH), np.float32)] * 3
    for s in sessions:
        core.open(s)
    waiting: list[tuple[np.ndarray, np.ndarray]] = []

    def expect(expected: np.ndarray, got: np.ndarray) -> None:
        waiting.append((expected, got))

    for which, position, count, wanted in asked:
        s = sessions[which]
        while s.task is not None:
            core.step()
        position = min(position, len(held[which]))
        count = min(count, 40 - position)
        wanted = min(wanted, count)
        rows = rng.normal(size=(count, WIDTH)).astype(np.float32)
        held[which] = np.concatenate([held[which][:position], rows])
        expected = computed(held[which])[position + count - wanted :] if wanted else rows[:0]
        core.extend(s, position, rows)
        core.assign(s, ForwardTask(wanted, lambda got, expected=expected: expect(expected, got.rows)))
        if rng.random() < 0.5:
            core.step()
    while any(s.task is not None for s in sessions):
        core.step()
    assert len(waiting) == len(asked)
    for expected, got in waiting:
        if len(expected):
            alike(got, expected)
    assert sum(len(s.table.blocks) for s in sessions) == len({b for s in sessions for b in s.table.blocks})
    for s in sessions:
        core.cancel(s)
    assert core.memory.pool.available == 13


async def test_equal_states_of_two_sessions_share_nothing(engine: MiddleEngine) -> None:
    rows = Tensor.of(hidden(1))
    sessions = [await engine.open([], Sampling(max_tokens=12)) for _ in range(2)]
    for s in sessions:
        await s.forward(0, rows, 1)
    free = (await handled(engine)).blocks_free
    assert free == 64 - 2 * 3
    await sessions[0].cancel()
    late = await engine.open([], Sampling(max_tokens=12))
    await late.forward(0, rows, 1)
    stats = await handled(engine)
    assert (stats.tokens_from_prefix, stats.tokens_prefilled) == (0, 36)


async def test_a_session_that_has_waited_elsewhere_is_taken_and_one_that_samples_is_not(
    engine: MiddleEngine,
) -> None:
    waiting = await engine.open([], Sampling(max_tokens=12, waited_s=3.0, reader_rate=5.0))
    await waiting.cancel()
    with pytest.raises(InvalidRequest, match="does not sample"):
        await engine.open([], Sampling(max_tokens=12, temperature=0.5))


async def test_whoever_gives_way_comes_back_without_being_asked() -> None:
    """Parked sessions, each larger than a third of the cache, in turns; nobody sends anything twice."""
    small = start(kv_blocks=16)
    rows = [hidden(i, 40) for i in range(4)]
    sessions = [await small.open([], Sampling(max_tokens=40)) for _ in rows]
    expected = [computed(each) for each in rows]
    for start_, end in ((0, 20), (20, 33), (33, 40)):
        for s, each, whole in zip(sessions, rows, expected, strict=True):
            part = await s.forward(start_, Tensor.of(each[start_:end]), 2)
            alike(part.hidden.numpy(), whole[end - 2 : end])
    assert (await handled(small)).preempted > 0
    await small.close()


async def test_readers_are_known_by_the_rounds_of_their_devices(engine: MiddleEngine) -> None:
    """A round begins where the one before has led: whoever schedules knows how much a reader has before them."""
    s = await engine.open([], Sampling(max_tokens=40, reader_rate=5.0))
    rows = hidden(1, 20)
    seen = []
    for start_, end, wanted in (
        (0, 8, 0),
        (8, 12, 3),
        (11, 13, 2),
        (12, 13, 1),
    ):  # two drafts, of which one stood …
        await s.forward(start_, Tensor.of(rows[start_:end]), wanted)
        seen.append((s._sequence.received, s._sequence.longest))
    assert seen == [(0, 40), (0, 30), (2, 30), (3, 30)]
    assert s._sequence.reader.buffer(engine._core.clock()) > 0


def test_no_token_can_be_said() -> None:
    """A device's messages for chunks and windows have no field for tokens."""
    told = frames.Forward.__struct_fields__
    assert set(told) == {"session", "seq", "engine", "position", "hidden", "wanted"}
    assert {f.name for f in fields(ForwardTask)} == {"window", "deliver"}
