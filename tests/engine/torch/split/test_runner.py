"""A model in two parts says what it says whole, however its parts are driven."""

from __future__ import annotations

import asyncio
import math
import random
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tandem.engine import family
from tandem.engine.base import EngineStopped, InvalidRequest, Sampling, Tensor, UnknownSession
from tandem.engine.config import HostMemory
from tandem.engine.models.model_folder import UnsupportedModel
from tandem.engine.split.hidden_states import KINDS, Kind, unpack
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch import weights
from tandem.engine.torch.attention.batch import BatchPiece
from tandem.engine.torch.model import KVPool, Model
from tandem.engine.torch.split.runner import Outer, TorchMiddle
from tandem.engine.torch.weights import Part
from tandem.training.family.prompts import heldout
from tests.effort import slow_after, tried
from tests.engine.torch import tiny
from tests.engine.torch.engines import handled, runner
from tests.engine.torch.place import DEVICE
from tests.engine.torch.split_parts import RANDOM, Client, Parts, model_folder, write_adapter
from tests.engine_contract import by_reference_counting

PROMPTS = [[20, 21, 22], [9], [5, 6, 7, 8, 9, 10, 11, 12, 13] * 4, [30] * 8, [40 + i for i in range(21)]]


@asynccontextmanager
async def parts(folder: Path, model: str = "llama", first: int = 1, **options: Any) -> AsyncIterator[Parts]:
    made = Parts.make(model_folder(model, folder / "model"), first, folder, **options)
    yield made
    await made.close()


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("kind", tiny.MODELS)
@torch.inference_mode()
def test_composition_equals_the_whole(kind: str, first: int, tmp_path: Path) -> None:
    """Logits of ragged chunks, to 1e-4, with an adapter in the outer part's stack and without; an adapter is refused
    where layers differ."""
    tiny.make(kind, tmp_path)
    adapter = write_adapter(tmp_path, tmp_path / "adapter" / "model.safetensors", RANDOM)
    model = Model(weights.load(tmp_path, DEVICE, torch.float32))
    ends = weights.load(tmp_path, DEVICE, torch.float32, Part(0, first))
    middle = TorchMiddle(weights.load(tmp_path, DEVICE, torch.float32, Part(first, ends=False)))
    tokens = np.random.default_rng(3).integers(0, tiny.VOCAB, (2, 23)).tolist()
    whole = KVPool(model.config, 16, 4, DEVICE, torch.float32)
    pieces = [BatchPiece(ids, 0, range(8 * i, 8 * i + 6), 23) for i, ids in enumerate(tokens)]
    expected = model.forward(model.batch(pieces, whole), whole).view(2, 23, -1)
    outers = [Outer(ends)]
    if kind not in tiny.ADAPTED:
        with pytest.raises(UnsupportedModel, match="layers are alike"):
            weights.with_adapter(ends, adapter)
    else:
        outers.append(Outer(weights.with_adapter(ends, adapter)))
    for outer in outers:
        pools = [KVPool(part.config, 16, 4, DEVICE, torch.float32) for part in (outer, middle)]
        for start, end in ((0, 9), (9, 10), (10, 23)):
            pieces = [
                BatchPiece(ids[start:end], start, range(8 * i, 8 * i + 6), 0) for i, ids in enumerate(tokens)
            ]
            _, shallow = outer.shallow(outer.batch(pieces, pools[0]), pools[0])
            rows = shallow.cpu().numpy().reshape(2, end - start, -1)
            pieces = [BatchPiece(rows[i], start, range(8 * i, 8 * i + 6), end - start) for i in range(2)]
            deep = middle.forward(middle.batch(pieces, pools[1]), pools[1])
            logits = outer.head(deep).view(2, end - start, -1)
            torch.testing.assert_close(logits, expected[:, start:end], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("first", [1, 2, 6, 11])
@torch.inference_mode()
def test_logits_of_the_embedded_target(first: int) -> None:
    """Wherever it is cut they are the whole model's to the bit, where both compute the same rows together."""
    folder = family.path("target")
    models = [
        Model(weights.load(folder, DEVICE, torch.float32)),
        Outer(weights.load(folder, DEVICE, torch.float32, Part(0, first))),
        TorchMiddle(weights.load(folder, DEVICE, torch.float32, Part(first, ends=False))),
    ]
    whole, outer, middle = models
    assert isinstance(outer, Outer)
    pools = [KVPool(model.config, 10, 16, DEVICE, torch.float32) for model in models]
    ids = np.random.default_rng(3).integers(3, whole.config.vocab_size, 150).tolist()
    for start, end in ((0, 96), (96, 99), (99, 100), (100, 150)):
        inputs = ids[start:end]
        piece = BatchPiece(inputs, start, range(10), end - start)
        expected = whole.forward(whole.batch([piece], pools[0]), pools[0])
        _, shallow = outer.shallow(outer.batch([piece], pools[1]), pools[1])
        rows = BatchPiece(shallow.cpu().numpy(), start, range(10), end - start)
        deep = middle.forward(middle.batch([rows], pools[2]), pools[2])
        torch.testing.assert_close(outer.head(deep), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("answers", [10, pytest.param(200, marks=pytest.mark.slow)])
async def test_answers_of_the_embedded_target(tmp_path: Path, answers: int) -> None:
    """Greedy ones, to the token; the adapter is not trained, and what it drafts right is accepted."""

    model = family.path("target")
    big = {"kv_blocks": 2048, "block_size": 16, "token_budget": 512}
    made = Parts.make(model, 2, tmp_path, 0.0, big, big)
    tokenizer = Tokenizer.load(model)
    client = Client(made, chunk=24, longest=lambda: 2, least=0.4)

    async def same(question: str) -> bool:
        prompt = tokenizer.render_chat([{"role": "user", "content": question}])
        sampling = Sampling(max_tokens=16)
        expected = await made.answer(prompt, sampling)
        got = await client.answer(prompt, sampling)
        return (got.ids, got.finish) == (expected.ids, expected.finish)

    questions = [item.question for item in heldout(answers, ["fact", "overview", "compare"], 7)]
    assert len(questions) == answers
    for start in range(0, answers, 40):
        assert all(await asyncio.gather(*map(same, questions[start : start + 40])))
    assert client.drafted > answers
    assert client.accepted > 0
    await made.close()


async def test_a_closed_outer_part_is_freed(tmp_path: Path) -> None:
    """Close it with drafts, and branches beyond them, that were not judged."""

    async def closed() -> list[weakref.ref[object]]:
        async with parts(tmp_path, adapter=RANDOM) as made:
            outer = made.outer
            session = await outer.open(PROMPTS[0], Sampling(max_tokens=24, ignore_eos=True))
            await session.propose(4)
            assert await session.branch(2, 2) > 0
            await made.close()
            with pytest.raises(EngineStopped):
                await session.propose(4)
            made = runner(outer)
            return [weakref.ref(part) for part in (outer, made, made.model)]

    with by_reference_counting():
        watched = await closed()
        await asyncio.sleep(0)
        assert [part() for part in watched] == [None] * 3


SAMPLINGS = [
    Sampling(max_tokens=24),
    Sampling(max_tokens=12, ignore_eos=True, repetition_penalty=1.3, presence_penalty=0.5),
    Sampling(max_tokens=12, min_tokens=8, logit_bias=((41, 3.0), (42, -100.0))),
    Sampling(max_tokens=1),
    Sampling(max_tokens=12, ignore_eos=True, logprobs=3),
]


@pytest.mark.parametrize(
    ("kind", "adapter"),
    slow_after(
        2,
        [
            ("llama-untied", 0.0),
            ("qwen3", 0.0),
            ("llama-untied", None),
            ("llama-untied", RANDOM),
            ("qwen2", 0.0),
        ],
    ),
)
async def test_answers_are_the_models_own(kind: str, adapter: float | None, tmp_path: Path) -> None:
    """In chunks and rounds of all sizes, with branches and without, and where the middle forgets."""
    async with parts(tmp_path, kind, 2, adapter=adapter) as made:
        chance = random.Random(3)
        hectic = Client(
            made,
            chunk=5,
            longest=lambda: chance.randrange(5),
            least=0.02,
            branches=3,
            lost=0.2,
            chance=chance,
        )
        plain = Client(made, longest=lambda: 4)
        every = kind == "llama-untied" and tried(False, True)
        for i, prompt in enumerate(PROMPTS):
            for sampling in SAMPLINGS if every else SAMPLINGS[i % 4 :: 4]:
                expected = await made.answer(prompt, sampling)
                for client in (hectic, plain):
                    got = await client.answer(prompt, sampling)
                    assert (got.ids, got.finish) == (expected.ids, expected.finish)
                    assert [s.logprob for s in got.scores] == pytest.approx(
                        [s.logprob for s in expected.scores], abs=1e-4
                    )
        if adapter is None:
            assert hectic.drafted == plain.drafted == 0
        elif adapter == 0.0:
            assert 0 < plain.accepted < plain.drafted
            assert hectic.adopted > 0


@pytest.mark.parametrize("seed", slow_after(1, range(3)))
async def test_without_drafts_it_samples_what_the_whole_samples(seed: int, tmp_path: Path) -> None:
    """Tokens are equal: seeds count by output position, wherever sampling happens; stop strings too."""
    async with parts(tmp_path, adapter=0.0) as made:
        client = Client(made, longest=lambda: 0)
        for prompt in PROMPTS:
            sampling = Sampling(
                max_tokens=20, ignore_eos=True, temperature=0.8, top_k=20, top_p=0.9, seed=seed, logprobs=1
            )
            expected, got = await made.answer(prompt, sampling), await client.answer(prompt, sampling)
            assert got.ids == expected.ids
            text = Tokenizer.load(made.model).decode(expected.ids)
            stopping = Sampling(max_tokens=20, ignore_eos=True, temperature=0.8, top_k=20, top_p=0.9, seed=seed,
                                stop=(text[4:6],))  # fmt: skip
            expected, got = await made.answer(prompt, stopping), await client.answer(prompt, stopping)
            assert (got.ids, got.finish) == (expected.ids, expected.finish)
            assert got.finish == "stop"


async def test_drafts_drawn_by_chance_leave_the_distribution_as_it_is(tmp_path: Path) -> None:
    """The first two tokens of many answers, against the model's own probabilities; with branches."""
    async with parts(tmp_path, adapter=0.0) as made:
        prompt, sampling = PROMPTS[0], Sampling(max_tokens=1, ignore_eos=True, logprobs=20)
        chance = {}
        (first,) = (await made.answer(prompt, sampling)).scores
        for token, logprob in first.top[:3]:
            (second,) = (await made.answer([*prompt, token], sampling)).scores
            chance |= {(token, other): math.exp(logprob + p) for other, p in second.top[:3]}
        client = Client(made, longest=lambda: 2, branches=2)

        async def two(seed: int) -> tuple[int, ...]:
            drawn = Sampling(max_tokens=3, ignore_eos=True, temperature=1.0, seed=seed)
            return tuple((await client.answer(prompt, drawn)).ids[:2])

        total = tried(150, 600)
        seen = Counter[tuple[int, ...]]()
        for start in range(0, total, 30):
            seen.update(await asyncio.gather(*(two(start + i) for i in range(30))))
        assert client.accepted > 0
        assert client.drafted > client.accepted
        for pair, p in chance.items():
            assert abs(seen[pair] - total * p) < 4.5 * math.sqrt(total * p * (1 - p)) + 1, pair


@pytest.mark.parametrize("temperature", slow_after(1, [0.8, 0.0]))
async def test_a_branch_drafts_what_would_be_drafted_later(temperature: float, tmp_path: Path) -> None:
    """Tokens have the same distribution, with less left to compute once the middle has answered."""
    outer = {"host_memory": HostMemory(blocks=64)}
    async with parts(tmp_path, first=2, adapter=0.0, outer=outer) as made:
        adopted = 0
        for prompt in PROMPTS:
            sampling = Sampling(max_tokens=24, ignore_eos=True, temperature=temperature, seed=2)
            plain = Client(made, longest=lambda: 2, least=0.05)
            branching = Client(made, longest=lambda: 2, least=0.05, branches=20)
            expected = await plain.answer(prompt, sampling)
            assert (await branching.answer(prompt, sampling)).ids == expected.ids
            assert branching.proposed == plain.proposed
            adopted += branching.adopted
        assert adopted > 10


async def test_a_proposal_that_was_left_goes_on_where_it_was(tmp_path: Path) -> None:
    """Cancel the caller at any time."""
    async with parts(tmp_path, adapter=0.0) as made:
        sampling = Sampling(max_tokens=30, ignore_eos=True, temperature=0.8, seed=1)
        s = await made.outer.open(PROMPTS[0], sampling)
        expected = await s.propose(8)
        drafted = (await handled(made.outer)).tokens_drafted
        for turns in range(12):
            t = await made.outer.open(PROMPTS[0], sampling)
            leaving = asyncio.ensure_future(t.propose(8))
            for _ in range(turns):
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait((leaving,))
            await t.rewind(0)
            again = await t.propose(8)
            assert again.ids == expected.ids
            assert again.probabilities == pytest.approx(expected.probabilities, abs=1e-4)
            np.testing.assert_allclose(
                unpack(again.hidden, made.outer.split.hidden),
                unpack(expected.hidden, made.outer.split.hidden),
                atol=1e-4,
            )
            await t.cancel()
        assert (await handled(made.outer)).tokens_drafted == 13 * drafted


async def test_a_session_that_waits_for_the_middle_gives_way(tmp_path: Path) -> None:
    """A device preempts it, too: its proposal stays good, and is judged when it is back."""
    small = {"kv_blocks": 12}
    async with parts(tmp_path, adapter=0.0, outer=small) as made:
        prompts, sampling = [[50 + i] * 24 for i in range(3)], Sampling(max_tokens=8, ignore_eos=True)
        expected = [(await made.answer(prompt, sampling)).ids for prompt in prompts]
        outers = [await made.outer.open(prompt, sampling) for prompt in prompts]
        middles = [await made.middle.open([], Sampling(max_tokens=40)) for _ in prompts]
        answers: list[list[int]] = [[], [], []]
        while any(len(answer) < 8 for answer in answers):
            going = [i for i in range(3) if len(answers[i]) < 8]
            proposals = [(i, await outers[i].propose(2)) for i in going]
            for i, p in proposals:
                s, t = outers[i], middles[i]
                answers[i] += (
                    await s.judge((await t.forward(p.position, p.hidden, p.wanted)).hidden)
                ).verdict.ids
        assert answers == expected
        assert (await handled(made.outer)).preempted > 0


@torch.inference_mode()
def test_parts_in_bfloat16(tmp_path: Path) -> None:
    """Run as on a GPU; hidden states are sent in float32, whatever computes them."""
    tiny.make("llama", tmp_path)
    whole = Model(weights.load(tmp_path, DEVICE, torch.bfloat16))
    outer = Outer(weights.load(tmp_path, DEVICE, torch.bfloat16, Part(0, 1)))
    middle = TorchMiddle(weights.load(tmp_path, DEVICE, torch.bfloat16, Part(1, ends=False)))
    pools = [KVPool(model.config, 4, 4, DEVICE, torch.bfloat16) for model in (whole, outer, middle)]
    piece = BatchPiece([5, 6, 7, 8], 0, [2], 4)
    expected = whole.forward(whole.batch([piece], pools[0]), pools[0])
    _, shallow = outer.shallow(outer.batch([piece], pools[1]), pools[1])
    assert shallow.dtype == torch.float32
    deep = middle.forward(middle.batch([BatchPiece(shallow.cpu().numpy(), 0, [3], 4)], pools[2]), pools[2])
    assert deep.dtype == torch.float32
    torch.testing.assert_close(outer.head(deep.to(torch.bfloat16)), expected)


async def test_a_request_goes_on_from_a_log(tmp_path: Path) -> None:
    async with parts(tmp_path, adapter=0.0) as made:
        sampling = Sampling(max_tokens=20, ignore_eos=True, temperature=0.7, seed=4)
        for prompt in PROMPTS[:3]:
            expected = (await made.answer(prompt, sampling)).ids
            got = await Client(made, chunk=3, longest=lambda: 0).answer(prompt, sampling, expected[:9])
            assert got.ids == expected[9:]


@pytest.mark.slow
async def test_many_devices_together_and_with_too_little_memory(tmp_path: Path) -> None:
    """Prefill chunks and windows of many sessions in one step; both parts preempt, and compute again."""
    few = {"kv_blocks": 40, "max_sessions": 6, "token_budget": 24}
    async with parts(tmp_path, "llama", 2, adapter=0.0, middle=few, outer=few) as made:
        chance = random.Random(5)
        sampling = Sampling(max_tokens=40, ignore_eos=True)
        prompts = [[3 + chance.randrange(90) for _ in range(1 + 4 * i)] for i in range(14)]
        expected = [(await made.answer(prompt, sampling)).ids for prompt in prompts]
        clients = [
            Client(made, 7 * (i % 2), lambda: chance.randrange(4), branches=i % 3)
            for i in range(len(prompts))
        ]
        answers = await asyncio.gather(
            *(client.answer(prompt, sampling) for client, prompt in zip(clients, prompts, strict=True))
        )
        assert [answer.ids for answer in answers] == expected
        for engine in (made.middle, made.outer):
            stats = await engine.stats()
            assert stats.preempted > 0
            assert stats.sessions == 0
            assert (await handled(engine)).blocks_free == 40


@pytest.mark.parametrize("kind", KINDS)
async def test_narrow_hidden_states_answer_as_well(kind: Kind, tmp_path: Path) -> None:
    """Both ways in the kind that the device chose; the answer of the narrowest may be another one."""
    async with parts(tmp_path, adapter=0.0, kind=kind) as made:
        client, sampling = Client(made, chunk=4), Sampling(max_tokens=8, ignore_eos=True)
        got = await client.answer(PROMPTS[2], sampling)
        assert {tensor.dtype for tensor in client.sent} == {kind}
        assert len(got.ids) == 8
        if kind == "float32":
            assert got.ids == (await made.answer(PROMPTS[2], sampling)).ids


async def test_nothing_is_computed_twice(tmp_path: Path) -> None:
    """Each position once at the device, but for those that were drafted wrong, and once in the middle."""
    async with parts(tmp_path, adapter=0.0) as made:
        client, sampling = Client(made, chunk=4, longest=lambda: 3), Sampling(max_tokens=24, ignore_eos=True)
        answer = await client.answer(PROMPTS[2], sampling)
        wrong = client.drafted - client.accepted
        positions = len(PROMPTS[2]) + len(answer.ids) - 1 + wrong
        assert sum(tensor.shape[0] for tensor in client.sent) == positions
        middle, outer = await made.middle.stats(), await made.outer.stats()
        assert middle.tokens_prefilled == positions
        assert middle.tokens_from_prefix == 0
        assert outer.tokens_prefilled + outer.tokens_drafted == positions
        again = await client.answer(
            PROMPTS[2], sampling
        )  # of the device's own cache no state is missing either
        assert again.ids == answer.ids


async def test_a_proposal_can_be_asked_for_again(tmp_path: Path) -> None:
    """Repeating it costs nothing, a shorter one is its beginning, a longer one extends it."""
    async with parts(tmp_path, adapter=0.0) as made:
        s = await made.outer.open(PROMPTS[0], Sampling(max_tokens=30, ignore_eos=True))
        first = await s.propose(4)
        steps = (await handled(made.outer)).steps
        again = await s.propose(4)
        assert (again.ids, again.hidden.shape[0]) == (first.ids, 0)
        assert (await handled(made.outer)).steps == steps
        shorter = await s.propose(2)
        assert shorter.ids == first.ids[:2]
        longer = await s.propose(6)
        assert longer.ids[:4] == first.ids
        assert longer.position <= len(PROMPTS[0]) + 2
        await s.rewind(0)
        whole = await s.propose(6)
        assert whole.hidden.shape[0] == len(PROMPTS[0]) + 6
        assert whole.probabilities == longer.probabilities
        assert whole.alternatives[0] == (whole.ids[-1], pytest.approx(whole.probabilities[-1]))


async def test_a_draft_ends_with_its_first_unlikely_token(tmp_path: Path) -> None:
    async with parts(tmp_path, adapter=0.0) as made:
        s = await made.outer.open(PROMPTS[2], Sampling(max_tokens=30, ignore_eos=True))
        all_ = await s.propose(12)
        for least in sorted(all_.probabilities):
            first = next((i for i, p in enumerate(all_.probabilities) if p < least), 11)
            t = await made.outer.open(PROMPTS[2], Sampling(max_tokens=30, ignore_eos=True))
            assert (await t.propose(12, lambda p, least=least: p >= least)).ids == all_.ids[: first + 1]
            await t.cancel()


async def test_a_draft_goes_on_as_it_is_told(tmp_path: Path) -> None:
    """Call `go_on` once for each token, unless the draft ends with it anyhow; again for tokens drafted before."""
    async with parts(tmp_path, adapter=0.0) as made:
        s = await made.outer.open(PROMPTS[2], Sampling(max_tokens=30, ignore_eos=True))
        told: list[float] = []

        def up_to(count: int) -> Callable[[float], bool]:
            told.clear()
            return lambda probability: told.append(probability) is None and len(told) < count

        four = await s.propose(12, up_to(4))
        assert (len(four.ids), told) == (4, four.probabilities)
        two = await s.propose(12, up_to(2))
        assert (two.ids, told) == (four.ids[:2], four.probabilities[:2])
        six = await s.propose(6, up_to(9))
        assert (len(six.ids), told) == (6, six.probabilities[:5])
        assert (await s.propose(0, up_to(9))).ids == told == []


async def test_what_does_not_judge_is_refused(tmp_path: Path) -> None:
    async with parts(tmp_path, adapter=0.0) as made:
        s = await made.outer.open(PROMPTS[0], Sampling(max_tokens=30, ignore_eos=True))
        rows = Tensor.of(np.zeros((1, made.outer.split.hidden), np.float32))
        with pytest.raises(InvalidRequest, match="do not judge"):
            await s.judge(rows)  # nothing was proposed
        await s.propose(3)
        with pytest.raises(InvalidRequest, match="do not judge"):
            await s.judge(rows)
        with pytest.raises(InvalidRequest, match="hidden states are"):
            await s.judge(Tensor.of(np.zeros((4, 3), np.float32)))
        with pytest.raises(InvalidRequest, match="beyond"):
            await s.rewind(99)
        with pytest.raises(InvalidRequest, match="cannot verify"):
            await s.verify([])
        await s.cancel()
        with pytest.raises(UnknownSession):
            await s.propose(1)
