"""Mode split: the whole model's answers from two parts of it, whatever policies decide and whatever is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock, call

import msgspec
import numpy as np
import pytest

from tandem.deployments.modes.base import Services
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.split import DeviceState, PromptLeft, SplitSettings, Splitting, _Middle
from tandem.deployments.request.job import Delta, Job, JobStats
from tandem.deployments.request.session import Trip
from tandem.deployments.request.timeouts import Limits, Timeouts
from tandem.deployments.request.uplink_queue import Sent
from tandem.engine.base import (
    Engine,
    Forward,
    Forwarded,
    Grammar,
    InvalidRequest,
    NoCapacity,
    Operation,
    R,
    Sampling,
    Session,
    SplitInfo,
    Tensor,
    Tokens,
)
from tandem.engine.config import EngineConfig, Given
from tandem.engine.core.split.kept import KeptStates
from tandem.engine.null.engine import NullEngine
from tandem.engine.split.base import SplitMismatch
from tandem.engine.split.hidden_states import row_bytes
from tandem.engine.split.loss import measured
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.split import bundle
from tandem.engine.torch.split.runner import load_middle, load_outer, load_pipeline
from tandem.policies.scheduling import scheduling
from tandem.policies.split import DeviceMonitor
from tandem.policies.split.chunking import ChunkingPolicy, ChunkState, FixedChunks, chunking
from tandem.policies.split.drafting import DraftingPolicy, Threshold, drafting
from tandem.policies.split.parallel_drafting import (
    Ahead,
    ParallelDraftingPolicy,
    WaitState,
    parallel_drafting,
)
from tests.deployments.faults import Failing, World
from tests.deployments.gateway.test_client import until
from tests.deployments.modes.test_executor import left_open
from tests.effort import slow_after
from tests.engine.torch.engines import handled
from tests.engine.torch.split_parts import Parts, model_folder
from tests.engine_contract import LANGUAGE, ruled

PROMPTS = [[20, 21, 22], [9], [5, 6, 7, 8, 9, 10, 11, 12, 13] * 4, [40 + i for i in range(21)]]
LONG = PROMPTS[2]
GREEDY = Sampling(max_tokens=20, ignore_eos=True)


class Widely:
    """A parallel drafting policy that does not ask what there is time for."""

    def choose(self, state: WaitState) -> Ahead:
        return Ahead(8, min(3, state.left))


def told(
    parts: Parts,
    chunks: Callable[[], ChunkingPolicy] = lambda: FixedChunks(7, overlap=True),
    drafts: Callable[[], DraftingPolicy] = lambda: Threshold(eta=0.05, most=3),
    meanwhile: Callable[[], ParallelDraftingPolicy] = Widely,
) -> dict[str, Any]:
    """Return arguments of a World: the outer part, and policies of the mode."""
    policies = {"chunking": chunks, "drafting": drafts, "parallel_drafting": meanwhile}
    settings = SplitSettings().model_copy(update={name: Given(make) for name, make in policies.items()})
    return {"services": Services(outer=parts.outer), "split": settings}


@asynccontextmanager
async def made(
    folder: Path, kind: str = "llama-untied", adapter: float | None = 0.0, **options: Any
) -> AsyncIterator[Parts]:
    parts = Parts.make(model_folder(kind, folder / "model"), 2, folder, adapter, **options)
    yield parts
    await parts.close()


def cut(model: Path, first: int, out: Path) -> Path:
    """A bundle without an adapter."""
    bundle.write(model, first, out)
    return out


def job(prompt: Sequence[int], sampling: Sampling = GREEDY) -> Job:
    return Job(11, tuple(prompt), sampling, mode="split")


async def answer(executor: Executor, wanted: Job) -> tuple[list[Delta], JobStats]:
    deltas = [delta async for delta in executor.run(wanted)]
    assert [delta.finish is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    stats = deltas[-1].stats
    assert stats is not None
    return deltas, stats


def ids_of(deltas: Sequence[Delta]) -> list[int]:
    return [i for delta in deltas for i in delta.ids]


async def nothing_is_left(world: World, parts: Parts) -> None:
    assert await left_open(world) == 0
    assert (await parts.outer.stats()).sessions == 0


@pytest.mark.parametrize("adapter", slow_after(1, [0.0, None]))
async def test_greedy_answers_are_the_whole_models(adapter: float | None, tmp_path: Path) -> None:
    """Use every combination of policies."""
    async with made(tmp_path, adapter=adapter) as parts:
        expected = [await parts.answer(prompt, GREEDY) for prompt in PROMPTS]
        drafted = dict.fromkeys(drafting, 0)
        for chunks, drafts, meanwhile in itertools.product(chunking, drafting, parallel_drafting):
            world = World(
                middles=[parts.middle],
                limits=Limits(),  # however busy the machine is
                **told(
                    parts,
                    lambda name=chunks: chunking.create(name),
                    lambda name=drafts: drafting.create(name),
                    lambda name=meanwhile: parallel_drafting.create(name),
                ),
            )
            answers = await asyncio.gather(*(answer(world.executor, job(prompt)) for prompt in PROMPTS))
            for (deltas, stats), whole in zip(answers, expected, strict=True):
                assert (ids_of(deltas), deltas[-1].finish) == (whole.ids, whole.finish)
                drafted[drafts] += Splitting.of(stats).drafted
            await nothing_is_left(world, parts)
        if adapter is None:
            assert not any(drafted.values())
        else:
            assert drafted.pop("none") == 0
            assert all(drafted.values())


class Overheard:
    """A middle that notes how its sessions are asked to sample."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.info, self.sampling = engine, engine.info, list[Sampling]()

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> Session:
        self.sampling.append(sampling)
        return await self.engine.open(prompt, sampling, log)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


async def test_answers_have_the_form_asked_for(tmp_path: Path) -> None:
    """The device alone knows it, and says what the whole model says."""
    async with made(tmp_path, adapter=0.0) as parts:
        middle, accepted, texts = Overheard(parts.middle), 0, set()
        world = World(middles=[middle], limits=Limits(), **told(parts))
        spelling = Tokenizer.load(parts.model)
        for prompt in PROMPTS:
            expected = await parts.answer(prompt, ruled())
            deltas, stats = await answer(world.executor, job(prompt, ruled()))
            assert (ids_of(deltas), deltas[-1].finish) == (expected.ids, expected.finish)
            sampled, _ = await answer(world.executor, job(prompt, ruled(3)))
            texts |= {spelling.shown_bytes(ids_of(said)) for said in (deltas, sampled)}
            accepted += Splitting.of(stats).accepted
        assert texts <= LANGUAGE
        assert accepted > 0
        assert len(middle.sampling) == 2 * len(PROMPTS)
        assert all(sampling.grammar is None for sampling in middle.sampling)
        with pytest.raises(InvalidRequest, match="regex"):
            await answer(world.executor, job(LONG, ruled(grammar=Grammar("regex", "a("))))
        await nothing_is_left(world, parts)


PATIENT = Limits(timeouts=Timeouts(connect_s=30, open_s=30, first_s=30, step_s=30))
"""Limits that a busy machine keeps."""


async def test_a_middle_in_stages(tmp_path: Path) -> None:
    """Chunks are chosen for the number of stages."""
    seen: list[int] = []

    class Seen(FixedChunks):
        def choose(self, state: ChunkState) -> int:
            seen.append(state.pipeline)
            return super().choose(state)

    async with made(tmp_path, adapter=0.0) as parts:
        pipeline = load_pipeline(parts.model, 1, 2, EngineConfig(kv_blocks=400, block_size=4), threads=1)
        outer = load_outer(cut(parts.model, 1, tmp_path / "cut"), EngineConfig(kv_blocks=400, block_size=4))
        world = World(
            middles=[pipeline],
            limits=PATIENT,
            services=Services(outer=outer),
            split=SplitSettings().model_copy(update={"chunking": Given(lambda: Seen(7, overlap=True))}),
        )
        for prompt in PROMPTS:
            deltas, _ = await answer(world.executor, job(prompt))
            assert ids_of(deltas) == (await parts.answer(prompt, GREEDY)).ids
        assert set(seen) == {2}
        assert await left_open(world) == 0
        await pipeline.close()
        await outer.close()


STAGES = [
    ("open", 0),
    ("forward", 3),
    ("forward", 9),
    *(("forward", n) for n in (0, 1, 6, 8, 12)),
    ("cancel", 0),
]
"""Operations of a prompt of 36 tokens in chunks of 7: there are 5, and then rounds."""


@pytest.mark.parametrize(("operation", "after"), slow_after(3, STAGES))
async def test_another_middle_goes_on_where_one_is_lost(operation: str, after: int, tmp_path: Path) -> None:
    """While a session is opened, a chunk or a draft is computed: the device goes on as if nothing had been."""
    async with made(tmp_path) as parts:
        expected = await parts.answer(LONG, GREEDY)

        async def computed() -> tuple[int, int]:
            stats = await handled(parts.outer)
            return stats.tokens_prefilled, stats.tokens_drafted

        alone = told(parts, meanwhile=lambda: parallel_drafting.create("none"))
        counted = []
        failing = Failing(parts.middle, operation, after)
        for middles in ([parts.middle], [parts.middle], [failing, parts.middle]):  # the first fills the cache
            world = World(middles=middles, **alone)
            before = await computed()
            deltas, stats = await answer(world.executor, job(LONG))
            counted.append([now - then for now, then in zip(await computed(), before, strict=True)])
        assert (ids_of(deltas), deltas[-1].finish) == (expected.ids, expected.finish)
        await world.executor.settled()
        assert failing.fired > 0
        assert stats.replans == (operation != "cancel")
        assert counted[2] == counted[1], "nothing is computed twice at the device"
        assert (await parts.outer.stats()).sessions == 0


async def test_a_replica_that_is_drained_hands_its_sessions_over(tmp_path: Path) -> None:
    """Sessions left at its deadline continue at another replica, to which the device sends their whole state."""
    async with made(tmp_path) as parts:
        going = Parts.make(parts.model, 2, tmp_path / "going")
        expected = [await parts.answer(prompt, GREEDY) for prompt in PROMPTS]
        world = World(middles=[going.middle, parts.middle], **told(parts))

        async def disturbed(prompt: list[int]) -> tuple[list[int], JobStats]:
            deltas = list[Delta]()
            async for delta in world.executor.run(job(prompt)):
                deltas.append(delta)
                if len(ids_of(deltas)) > 5:
                    await going.middle.close()
            assert delta.stats is not None
            return ids_of(deltas), delta.stats

        answers = await asyncio.gather(*map(disturbed, PROMPTS))
        assert [ids for ids, _ in answers] == [whole.ids for whole in expected]
        assert sum(stats.replans for _, stats in answers) > 0
        assert {endpoint.key for endpoint in world.gone} == {"middle@middle:0"}
        await world.executor.settled()
        assert [(await each.stats()).sessions for each in (parts.middle, parts.outer)] == [0, 0]
        await going.close()


async def test_a_full_middle(tmp_path: Path) -> None:
    """A new request is refused. A begun answer waits for room, and continues when there is some."""

    def full() -> NoCapacity:
        return NoCapacity("full", retry_after_s=0.01)

    async with made(tmp_path) as parts:
        expected = await parts.answer(LONG, GREEDY)
        refusing = Failing(parts.middle, "open", 0, full)
        world = World(middles=[refusing], **told(parts))
        with pytest.raises(NoCapacity, match="full"):
            await answer(world.executor, job(LONG))
        await nothing_is_left(world, parts)

        def full_once() -> NoCapacity:
            leaving._operation = "none"
            return full()

        dying, leaving = Failing(parts.middle, "forward", 8), Failing(parts.middle, "open", 0, full_once)
        world = World(middles=[dying, leaving], **told(parts))
        deltas, stats = await answer(world.executor, job(LONG))
        assert (ids_of(deltas), stats.replans) == (expected.ids, 2)
        assert leaving.fired == 1
        await nothing_is_left(world, parts)


class Before:
    """A middle that does something before it takes hidden states in."""

    def __init__(self, engine: Engine, before: Callable[[int], Awaitable[object]]) -> None:
        self.engine, self.info, self.before = engine, engine.info, before

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> Session:
        before, session = self.before, await self.engine.open(prompt, sampling, log)

        class Waiting(Session):
            def generate(self) -> AsyncGenerator[Tokens, None]:
                return session.generate()

            async def call(self, operation: Operation[R]) -> R:
                if isinstance(operation, Forward):
                    await before(operation.wanted)
                return await session.call(operation)

            async def cancel(self) -> None:
                await session.cancel()

        return Waiting()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


class Stall:
    """The first `forwards` pass. reached: somebody has to wait."""

    def __init__(self, forwards: int) -> None:
        self.left, self.reached = forwards, asyncio.Event()

    async def __call__(self, wanted: int) -> None:
        self.left -= 1
        if self.left < 0:
            self.reached.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("forwards", slow_after(1, [2, 0, 8]))
async def test_a_middle_that_keeps_one_waiting_is_lost(forwards: int, tmp_path: Path) -> None:
    async with made(tmp_path) as parts:
        expected = await parts.answer(LONG, GREEDY)
        limits = Limits(timeouts=Timeouts(connect_s=5, open_s=5, first_s=0.3, step_s=0.3))
        stall = Stall(forwards)
        world = World(middles=[Before(parts.middle, stall), parts.middle], **told(parts), limits=limits)
        deltas, stats = await answer(world.executor, job(LONG))
        assert (ids_of(deltas), stats.replans) == (expected.ids, 1)
        assert stall.reached.is_set()
        assert stats.stages_s["forward"] >= 0.3
        await nothing_is_left(world, parts)


@pytest.mark.parametrize("forwards", [0, 8])
async def test_cancelling_reaches_both_sides(forwards: int, tmp_path: Path) -> None:
    """While the middle is at work, before the first token and after; and between two tokens."""
    async with made(tmp_path) as parts:
        stall = Stall(forwards)
        world = World(middles=[Before(parts.middle, stall)], **told(parts))
        asking = asyncio.ensure_future(answer(world.executor, job(LONG)))
        await stall.reached.wait()
        asking.cancel()
        await asyncio.wait((asking,))
        await nothing_is_left(world, parts)
        world = World(middles=[parts.middle], limits=Limits(), **told(parts))
        async with aclosing(world.executor.run(job(LONG))) as deltas:
            await anext(deltas)
            assert (await parts.outer.stats()).sessions == 1
        await nothing_is_left(world, parts)


@pytest.mark.parametrize("name", slow_after(2, sorted(scheduling)))
async def test_a_small_middle_is_shared_as_its_policy_says(name: str, tmp_path: Path) -> None:
    """Sessions give way to one another there, and no device is asked for anything again."""
    crowded = {"kv_blocks": 24, "max_running": 2, "scheduling": {"name": name}}
    async with made(tmp_path, middle=crowded) as parts:
        prompts = [[20 + i] * 30 for i in range(5)]
        reading = msgspec.structs.replace(GREEDY, reader_rate=100.0)
        expected = [await parts.answer(prompt, reading) for prompt in prompts]
        world = World(middles=[parts.middle], limits=Limits(), **told(parts))
        answers = await asyncio.gather(*(answer(world.executor, job(prompt, reading)) for prompt in prompts))
        for (deltas, stats), whole in zip(answers, expected, strict=True):
            assert (ids_of(deltas), stats.replans) == (whole.ids, 0)
        assert (await parts.middle.stats()).preempted > 0
        await nothing_is_left(world, parts)


SAMPLINGS = [
    Sampling(max_tokens=24),
    Sampling(max_tokens=12, ignore_eos=True, repetition_penalty=1.3, presence_penalty=0.5),
    Sampling(max_tokens=1),
    Sampling(max_tokens=12, ignore_eos=True, logprobs=3, stop_tokens=(41, 42)),
    Sampling(max_tokens=12, ignore_eos=True, stop=("th",)),
]


@pytest.mark.parametrize("sampling", slow_after(2, reversed(SAMPLINGS)))
async def test_what_a_client_asks_for_means_what_it_means_elsewhere(
    sampling: Sampling, tmp_path: Path
) -> None:
    async with made(tmp_path) as parts:
        world = World(middles=[parts.middle], limits=Limits(), **told(parts))
        for prompt in PROMPTS:
            expected = await parts.answer(prompt, sampling)
            deltas, _ = await answer(world.executor, job(prompt, sampling))
            assert (ids_of(deltas), deltas[-1].finish) == (expected.ids, expected.finish)
            scores = [each.logprob for delta in deltas for each in delta.logprobs or ()]
            assert scores == pytest.approx([each.logprob for each in expected.scores], abs=1e-4)


async def test_sampling_is_the_devices(tmp_path: Path) -> None:
    """Without drafts, with a temperature, a seed gives what the whole model gives with it."""
    async with made(tmp_path) as parts:
        world = World(
            middles=[parts.middle], limits=Limits(), **told(parts, drafts=lambda: drafting.create("none"))
        )
        for seed in range(3):
            sampling = Sampling(max_tokens=12, ignore_eos=True, temperature=0.8, top_p=0.9, seed=seed)
            expected = await parts.answer(LONG, sampling)
            deltas, _ = await answer(world.executor, job(LONG, sampling))
            assert ids_of(deltas) == expected.ids


@pytest.mark.parametrize("name", slow_after(1, ["hat", "fixed", "whole"]))
async def test_the_last_chunk_goes_with_the_first_round(name: str, tmp_path: Path) -> None:
    """The chunk's rows and the last prompt token's are computed in one step, and no draft is waited for."""
    async with made(tmp_path) as parts:
        sent: list[int] = []

        async def note(wanted: int) -> None:
            sent.append(wanted)

        world = World(
            middles=[Before(parts.middle, note)],
            **told(parts, lambda: chunking.create(name, **({"size": 7} if name == "fixed" else {}))),
        )
        deltas, stats = await answer(world.executor, job(LONG))
        chunks = Splitting.of(stats).chunks
        assert sent[:chunks] == [0] * (chunks - 1) + [1]
        assert len(sent) == chunks - 1 + Splitting.of(stats).rounds
        assert len(deltas[0].ids) == 1


async def test_the_figures_add_up(tmp_path: Path) -> None:
    async with made(tmp_path) as parts:

        async def drafted_ahead(wanted: int) -> None:
            (session,) = parts.outer._sessions.values()
            branches = session._sequence.branches  # type: ignore[attr-defined]
            while wanted > 1 and (not branches or any(branch.task is not None for branch in branches)):
                await handled(parts.outer)

        one = told(parts, drafts=lambda: Threshold(most=1))
        world = World(middles=[Before(parts.middle, drafted_ahead)], **one)
        deltas, stats = await answer(world.executor, job(LONG))
        figures, origins = Splitting.of(stats), stats.by_origin
        assert figures.chunks == 5
        assert figures.rounds == len(deltas)
        assert 0 < figures.accepted < figures.drafted
        assert 0 < figures.branches_used <= figures.branches
        assert origins["draft"] == figures.accepted
        assert origins["corrected"] + origins.get("bonus", 0) + origins.get("cloud", 0) == figures.rounds
        sent, back = len(LONG) - 1 + figures.rounds + figures.drafted, figures.rounds + figures.drafted
        a_token = row_bytes(32, "float32")
        assert (figures.up_bytes, figures.down_bytes) == (sent * a_token, back * a_token)
        assert (stats.used.server_in, stats.used.server_out) == (sent, 0)
        assert (await parts.middle.stats()).tokens_prefilled == sent


async def test_who_is_not_the_device_refuses(tmp_path: Path) -> None:
    """Before anybody is asked."""
    async with made(tmp_path) as parts:
        world = World([NullEngine()], middles=[parts.middle])
        with pytest.raises(PromptLeft, match="a prompt that came here has left it already"):
            await answer(world.executor, job(LONG))
        assert not world.wanted


async def test_parts_of_different_models(tmp_path: Path) -> None:
    """A middle that does not fit gets no hidden states."""
    async with made(tmp_path) as parts, made(tmp_path / "other", "qwen3") as other:
        world = World(middles=[other.middle], **told(parts))
        with pytest.raises(SplitMismatch, match="was cut from the model"):
            await answer(world.executor, job(LONG))
        assert (await other.middle.stats()).tokens_prefilled == 0
        assert (await other.middle.stats()).opened == 0
        await nothing_is_left(world, parts)
        await nothing_is_left(world, other)


@pytest.mark.parametrize("known", [True, False])
async def test_of_several_middles_one_that_fits_is_found(known: bool, tmp_path: Path) -> None:
    """Whether the router knows which, or has heard something else of one that was replaced."""
    async with made(tmp_path) as parts:
        larger = load_middle(parts.model, 1, EngineConfig(kv_blocks=400, block_size=4), threads=1)
        world = World(middles=[larger, larger, parts.middle], **told(parts))
        if not known:
            said = [replace(e, split=parts.outer.info.split) for e in world.snapshot.pools["middle"]]
            world.list_pool("middle", *said)
        for prompt in PROMPTS:
            deltas, stats = await answer(world.executor, job(prompt))
            assert ids_of(deltas) == (await parts.answer(prompt, GREEDY)).ids
            assert (stats.replans > 0) <= (not known)
        seen = (await larger.stats()).opened, (await larger.stats()).tokens_prefilled
        assert seen == ((0, 0) if known else (seen[0], 0))
        assert (seen[0] > 0) == (not known)
        assert not world.gone, "those that do not fit are well"
        await nothing_is_left(world, parts)
        await larger.close()


async def test_the_next_turn_sends_only_what_is_new(tmp_path: Path) -> None:
    """The answer is the whole model's all the same; also where the middle has forgotten what it was asked to keep."""
    async with made(tmp_path) as parts:
        world = World(middles=[parts.middle], limits=Limits(), **told(parts))
        first, before = await answer(world.executor, job(LONG))
        second = [*LONG, *ids_of(first), 44, 45]
        expected = await parts.answer(second, GREEDY)
        deltas, stats = await answer(world.executor, job(second))
        assert ids_of(deltas) == expected.ids
        assert len(LONG) < Splitting.of(stats).kept < len(second)
        assert Splitting.of(stats).up_bytes < Splitting.of(before).up_bytes
        assert Splitting.of(stats).chunks == 1 < Splitting.of(before).chunks
        await world.executor.settled()
        await until(lambda: len(parts.middle.kept) == 1)  # its thread may take a moment
        parts.middle.kept = KeptStates()
        third = [*second, *ids_of(deltas), 46]
        expected = await parts.answer(third, GREEDY)
        deltas, stats = await answer(world.executor, job(third))
        assert (ids_of(deltas), Splitting.of(stats).kept) == (expected.ids, 0)
        _, stats = await answer(world.executor, job([91, *third[1:]]))
        assert Splitting.of(stats).kept == 0, "the beginning is another"
        await nothing_is_left(world, parts)


TAKES_ALL, OLD = ("float32", "float16", "bfloat16", "int8", "int6", "int4"), ("float32", "float16")


@pytest.mark.parametrize(
    ("wire", "takes", "up_bytes_s", "kind"),
    [
        ("float32", OLD, 1e6, "float32"),
        ("int6", TAKES_ALL, 1e9, "int6"),
        ("int6", OLD, 1e6, "float16"),
        ("auto", TAKES_ALL, 1e6, "int6"),
        ("auto", TAKES_ALL, 1e9, "float16"),
        ("auto", OLD, 1e6, "float16"),
    ],
)
def test_the_number_format_is_one_that_the_middle_takes(
    wire: Any, takes: tuple[str, ...], up_bytes_s: float, kind: str
) -> None:
    """Use a model whose loss was measured, and choose by the speed of the link if the owner leaves it to that."""
    settings = SplitSettings(wire=wire)
    split = SplitInfo(next(iter(measured())), 2, 12, 192)
    outer: Any = SimpleNamespace(info=SimpleNamespace(split=split), kind=settings.kind)
    device = DeviceState(outer, settings)
    device.link = DeviceMonitor(up_bytes_s)
    assert device.kind(msgspec.structs.replace(split, takes=takes)) == kind
    other = msgspec.structs.replace(split, checksum="unmeasured", takes=takes)
    outer.info.split = other
    assert wire != "auto" or DeviceState(outer, settings).kind(other) == "float16"


async def test_a_crossing_is_what_was_neither_waiting_nor_work_since_the_states_before_had_gone_up() -> None:
    """The third one had another request's upload ahead of it, and the fourth was not computed."""
    states = Tensor.of(np.zeros((2, 4), np.float32))
    trips = deque(
        Trip(Forwarded(states, batch_tokens=batch, batch_s=0.05, took_s=took_s), 3, sent_s, came_s)
        for sent_s, came_s, took_s, batch in (
            (1.0, 1.5, 0.1, 7), (1.2, 1.8, 0.2, 7), (1.3, 2.0, 0.1, 7), (1.9, 2.5, 0.1, 0), (2.0, 2.6, 0.1, 7)
        )
    )  # fmt: skip
    session = Mock(on_their_way=0, send=Mock(), receive=AsyncMock(side_effect=lambda: trips.popleft()))
    type(session).on_their_way = property(lambda _: len(trips))
    clear = iter((True, True, False, True, True))
    uplink = Mock(sent=lambda who, size: Sent(size, next(clear)), arrived=Mock())
    figures, split = Splitting(), Mock()
    device: Any = SimpleNamespace(link=SimpleNamespace(rtt_s=0.01), uplink_queue=uplink, hidden=4)
    middle = _Middle(session, figures, device)
    for position in range(5):
        middle.send(position, states, 1)
    assert figures.up_bytes == 5 * states.data.nbytes
    assert (await middle.received(split, 3)).shape == states.shape
    assert (len(trips), middle.before_s) == (3, 1.5)
    await middle.received(split, 0)
    crossed = [call.args for call in split.crossed.call_args_list]
    assert crossed == [
        (3, 2, pytest.approx(1.4 - 1.0)),
        (3, 2, pytest.approx(1.6 - 1.39)),
        (3, 2, pytest.approx(2.5 - 2.0)),
    ]
    assert split.answered.call_args_list == [call(7, 0.05)] * 4
    assert figures.down_bytes == 5 * states.data.nbytes
    assert middle.before_s == 2.5
