"""The asyncio facade: many sessions at once, refusals, cancellation, the end and the crash."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.engine.base import (
    ContextOverflow,
    DraftProbs,
    Engine,
    EngineError,
    EngineStopped,
    Grammar,
    InvalidRequest,
    NoCapacity,
    Sampling,
    SessionCancelled,
    Tokens,
)
from tandem.engine.config import HostMemory, SchedulingChoice
from tandem.engine.core.engine import CoreEngine
from tandem.engine.text.detokenizer import Spelling
from tandem.policies.scheduling import scheduling
from tests.effort import slow_after
from tests.engine.torch.engines import CONTEXT, Engines, Gate, collect, handled, runner, thread, tokenizer
from tests.engine.torch.tiny_weights import EOS, VOCAB
from tests.engine_contract import CHECKS, GRAMMATICAL, close_ends_it, exhaust

PROMPT = [20, 21, 22]


def endless(max_tokens: int = CONTEXT - 20) -> Sampling:
    return Sampling(max_tokens=max_tokens, ignore_eos=True)


@pytest.fixture
async def engines(tmp_path: Path) -> AsyncIterator[Engines]:
    made = Engines(tmp_path)
    yield made
    await made.close()


KINDS: dict[str, dict[str, Any]] = {
    "first-come": {},
    "buffer-aware": {
        "scheduling": SchedulingChoice(name="buffer_aware"),
        "max_running": 2,
        "host_memory": HostMemory(blocks=64),
    },
}


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, engines: Engines) -> CoreEngine:
    return engines.start(**KINDS[request.param])


@pytest.fixture
def gate(engine: CoreEngine, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(engine, monkeypatch)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_contract(check: Callable[[Engine, list[int]], Awaitable[None]], engine: CoreEngine) -> None:
    await check(engine, PROMPT)


@pytest.mark.parametrize("check", GRAMMATICAL, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", KINDS)
async def test_contract_of_grammars(
    check: Callable[[Engine, Spelling], Awaitable[None]], kind: str, engines: Engines
) -> None:
    await check(engines.start(text=tokenizer(), **KINDS[kind]), tokenizer())


async def test_no_grammar_without_a_tokenizer(engine: CoreEngine) -> None:
    with pytest.raises(InvalidRequest, match="grammars"):
        await engine.open(PROMPT, Sampling(max_tokens=9, grammar=Grammar("json_object")))


@pytest.mark.parametrize("kind", KINDS)
async def test_contract_of_close(kind: str, tmp_path: Path) -> None:
    def parts(engine: CoreEngine) -> list[object]:
        made = runner(engine)
        return [made, made.model, made.kv, engine._core.memory]

    await close_ends_it(lambda: Engines(tmp_path).start(**KINDS[kind]), PROMPT, parts)


# -- many at once ---------------------------------------------------------------------------------------


async def test_many_sessions_at_once(engines: Engines) -> None:
    """Generating, verifying and being cancelled, with a cache too small for all: each gets its own output."""
    engine = engines.start(kv_blocks=40)
    rng = np.random.default_rng(0)

    async def one(i: int) -> None:
        prompt = [5, 6, 7, 8, 9][: 1 + i % 5] + rng.integers(3, VOCAB, i % 7).tolist()
        sampling = Sampling(max_tokens=5 + i % 20, repetition_penalty=1.0 + i % 3 / 4)
        expected = engines.greedy(prompt, sampling)
        session = await engine.open(prompt, sampling)
        if i % 4 == 0:
            stream = session.generate()
            ids = (await anext(stream)).ids
            await session.cancel()
            with suppress(SessionCancelled):  # unless it was done before it was cancelled
                async for tokens in stream:
                    ids += tokens.ids
            assert ids == expected[0][: len(ids)]
            return
        ids = []
        if i % 4 == 1:
            verdict = await session.verify(expected[0][:3])
            ids += verdict.ids
        more, finish = await collect(session)
        assert (ids + more, finish) == expected
        await session.cancel()

    await asyncio.gather(*(one(i) for i in range(48)))
    stats = await handled(engine)
    assert (stats.opened, stats.cancelled + stats.finished) == (48, 48)
    assert stats.finished >= 36
    assert (stats.sessions, stats.running, stats.waiting) == (0, 0, 0)
    assert stats.blocks_free == stats.blocks_total == 40
    assert stats.preempted > 0
    assert stats.tokens_from_prefix > 0
    assert stats.steps > 0
    assert stats.step_s > 0


@pytest.mark.parametrize("temperature", slow_after(1, [0.7, 1.5]))
async def test_chance_repeats_whatever_shares_the_batch(engines: Engines, temperature: float) -> None:
    """Alone in a large cache, and among others in a small one that preempts; also continued from a log."""
    samplings = [
        Sampling(max_tokens=24, temperature=temperature, seed=i, top_p=1 - i / 40, top_k=20 * (i % 2))
        for i in range(12)
    ]
    alone = []
    roomy = engines.start()
    for i, sampling in enumerate(samplings):
        session = await roomy.open(PROMPT, sampling)
        alone.append(await collect(session))
        await session.cancel()
        for cut in (1, len(alone[i][0]) // 2):
            session = await roomy.open(PROMPT, sampling, alone[i][0][:cut])
            rest, finish = await collect(session)
            if cut < len(alone[i][0]):
                assert (alone[i][0][:cut] + rest, finish) == alone[i]
            await session.cancel()
    assert len({tuple(ids) for ids, _ in alone}) == 12, "other seeds, other outputs"

    tight = engines.start(kv_blocks=20)

    async def one(i: int) -> tuple[list[int], str | None]:
        session = await tight.open(PROMPT, samplings[i])
        result = await collect(session)
        await session.cancel()
        return result

    assert await asyncio.gather(*map(one, range(12))) == alone
    assert (await tight.stats()).preempted > 0


async def test_logprobs_are_the_models_own(engines: Engines) -> None:
    """Before penalties and temperature, for generated and for verified tokens alike."""
    engine = engines.start()
    sampling = Sampling(max_tokens=8, ignore_eos=True, logprobs=3, repetition_penalty=1.5)
    expected, _ = engines.greedy(PROMPT, sampling)
    session = await engine.open(PROMPT, sampling)
    verdict = await session.verify([*expected[:2], (expected[2] + 1) % VOCAB])
    scores = list(verdict.logprobs or [])
    async for tokens in session.generate():
        scores += tokens.logprobs or []
    assert len(scores) == 8
    for position, (token, score) in enumerate(zip(expected, scores, strict=True)):
        own = engines.models[0].logits((*PROMPT, *expected[:position])).log_softmax(-1)
        assert score.logprob == pytest.approx(float(own[token]), abs=1e-4)
        best = own.topk(3)
        assert [t for t, _ in score.top] == best.indices.tolist()
        assert [p for _, p in score.top] == pytest.approx(best.values.tolist(), abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_forced_session_scores_a_given_text(engines: Engines, temperature: float) -> None:
    """Beside one that is not forced."""
    engine = engines.start()
    given = [7, 3, VOCAB - 1, 3, 9, 9]
    forced = Sampling(max_tokens=7, ignore_eos=True, logprobs=2, forced=True, temperature=temperature)
    session, free = await engine.open(PROMPT, forced), await engine.open(PROMPT, Sampling(max_tokens=7))
    scores = []
    for at in (0, 4):
        part = given[at : at + 4]
        verdict, other = await asyncio.gather(session.verify(part), free.verify(part))
        assert (verdict.accepted, verdict.ids[:-1]) == (len(part), part)
        assert other.accepted < len(part), "the model would say something else"
        scores += verdict.logprobs[: len(part)]
        await session.extend(at + len(part), [])
        await free.extend(at, part)
    for position, (token, score) in enumerate(zip(given, scores, strict=True)):
        own = engines.models[0].logits((*PROMPT, *given[:position])).log_softmax(-1)
        assert score.logprob == pytest.approx(float(own[token]), abs=1e-4)
        assert len(score.top) == 2


# -- stop strings ---------------------------------------------------------------------------------------


async def test_stop_strings_across_tokens(engines: Engines) -> None:
    """Every stretch of two and three characters of an output, one character a token, as a stop string."""
    text = tokenizer()
    engine = engines.start(text=text)
    whole, _ = engines.greedy([30, 20], endless(40))
    shown = text.decode(whole)
    stops = {shown[i : i + n] for n in (2, 3) for i in range(len(shown) - n)}
    assert len(stops) > 5
    for stop in sorted(stops):
        sampling = Sampling(max_tokens=40, ignore_eos=True, stop=("never said", stop))
        session = await engine.open([30, 20], sampling)
        ids, finish = await collect(session)
        assert finish == "stop"
        assert ids == whole[: len(ids)]
        assert text.decode(ids).endswith(stop)
        assert stop not in text.decode(ids[:-1])
        await session.extend(0, [])  # back to the beginning: it has not been said yet
        assert await collect(session) == (ids, "stop")
        await session.extend(0, ids[:-1])  # one token before
        assert await collect(session) == (ids[-1:], "stop")
        await session.extend(0, ids)  # said by what was set
        assert await collect(session) == ([], "stop")
        await session.extend(0, [])
        verdict = await session.verify(whole[:39])
        assert (verdict.ids, verdict.finish, verdict.accepted) == (ids, "stop", len(ids))
        await session.cancel()
        session = await engine.open([30, 20], sampling, ids[:-1])  # begun in the log
        assert await collect(session) == (ids[-1:], "stop")
        await session.cancel()


async def test_stop_strings_need_a_tokenizer(engine: CoreEngine) -> None:
    with pytest.raises(InvalidRequest, match="tokenizer"):
        await engine.open(PROMPT, Sampling(max_tokens=3, stop=("x",)))
    assert (await engine.stats()).sessions == 0


# -- stopping -------------------------------------------------------------------------------------------


async def test_closing_the_stream_stops_the_work(engine: CoreEngine, gate: Gate) -> None:
    session = await engine.open(PROMPT, endless())
    stream = session.generate()
    gate.steps(3)
    await anext(stream)
    await stream.aclose()
    gate.open()
    before = await handled(engine)
    assert before.tokens_generated <= 4
    await collect(await engine.open(PROMPT, endless(10)))
    after = await engine.stats()
    assert after.tokens_generated == before.tokens_generated + 10, "the left session went on"
    assert after.running == 0
    await session.extend(0, [])  # it is free for other operations


async def test_a_task_cancelled_while_it_generates(engine: CoreEngine, gate: Gate) -> None:
    session = await engine.open(PROMPT, endless())
    begun = asyncio.Event()

    async def consume() -> None:
        async for _ in session.generate():
            begun.set()

    task = asyncio.create_task(consume())
    gate.steps(3)
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.open()
    stats = await handled(engine)
    assert stats.running == 0
    assert stats.tokens_generated <= 4


async def test_a_session_is_free_with_the_last_item_of_its_stream(engine: CoreEngine) -> None:
    """Whether or not the consumer asks on to find that nothing follows."""
    session = await engine.open(PROMPT, endless(3))
    stream = session.generate()
    async for tokens in stream:
        if tokens.finish is not None:
            break
    await session.extend(0, [])
    await stream.aclose()
    assert len((await collect(session))[0]) == 3


@pytest.mark.parametrize("operation", ["generate", "verify", "draft", "extend"])
async def test_cancelling_the_session_ends_its_operation(
    engine: CoreEngine, gate: Gate, operation: str
) -> None:
    session = await engine.open([5] * 100, Sampling(max_tokens=20, ignore_eos=True))
    run: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "generate": lambda: collect(session),
        "verify": lambda: session.verify([5] * 10),
        "draft": lambda: session.draft(0, [], 15),
        "extend": lambda: session.extend(0, [5]),
    }
    task = asyncio.create_task(run[operation]())
    await asyncio.sleep(0)  # now it has begun
    assert (await engine.stats()).running == 1
    await session.cancel()
    with pytest.raises(SessionCancelled):
        await task
    gate.open()
    stats = await handled(engine)
    assert (stats.sessions, stats.cancelled) == (0, 1)
    assert stats.blocks_free == stats.blocks_total


async def test_a_verify_whose_caller_left_frees_the_session(engine: CoreEngine, gate: Gate) -> None:
    session = await engine.open([5] * 60, Sampling(max_tokens=20, ignore_eos=True))
    task = asyncio.create_task(session.verify([5, 6]))
    await asyncio.sleep(0)  # now it has begun
    assert (await engine.stats()).running == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await engine.stats()).running == 0
    again = asyncio.create_task(session.verify([]))
    gate.open()
    assert (await again).ids


# -- refusals -------------------------------------------------------------------------------------------


async def test_refused_by_the_thread_a_session_is_free_again(engine: CoreEngine) -> None:
    """Send operations that only the core can refuse; between the refusals no operation is running."""
    session = await engine.open(PROMPT, endless(4))
    for _ in range(3):
        with pytest.raises(InvalidRequest, match="cannot set"):
            await session.extend(2, [])
        with pytest.raises(InvalidRequest, match="cannot set"):
            await session.draft(2, [], 1)
        assert (await engine.stats()).running == 0
    assert len((await collect(session))[0]) == 4


def probs(rows: list[list[tuple[int, float]]]) -> DraftProbs:
    return DraftProbs.of(
        np.array([[t for t, _ in row] for row in rows]), np.array([[p for _, p in row] for row in rows])
    )


FINE = [(5, 0.5), (6, 0.5)]
BAD_VERIFIES = {
    "id too large": ([VOCAB], None),
    "negative id": ([-1], None),
    "fewer distributions": ([5, 5], probs([FINE])),
    "more distributions": ([5], probs([FINE, FINE])),
    "distributions without drafts": ([], probs([FINE])),
    "id of a distribution too large": ([5], probs([[(5, 0.5), (VOCAB, 0.5)]])),
    "negative id of a distribution": ([5], probs([[(5, 0.5), (-1, 0.5)]])),
    "not a number": ([5], probs([[(5, float("nan")), (6, 0.5)]])),
    "infinite": ([5], probs([[(5, float("inf")), (6, 0.5)]])),
    "negative probability": ([5], probs([[(5, 1.5), (6, -0.5)]])),
    "does not sum to one": ([5], probs([[(5, 0.5), (6, 0.1)]])),
    "width zero": ([5], DraftProbs(0, b"", b"")),
    "ragged bytes": ([5], DraftProbs(2, b"123", b"")),
    "ragged rows": ([5], DraftProbs(3, bytes(16), bytes(16))),
    "fewer probabilities than ids": ([5], DraftProbs(2, bytes(8), b"")),
}


@pytest.mark.parametrize("name", BAD_VERIFIES)
async def test_bad_drafts_are_refused_and_harm_nobody(engine: CoreEngine, name: str) -> None:
    sampling = Sampling(max_tokens=9, temperature=1.0, ignore_eos=True)
    session, other = await engine.open(PROMPT, sampling), await engine.open(PROMPT, sampling)
    drafts, stated = BAD_VERIFIES[name]
    neighbour = asyncio.create_task(collect(other))
    with pytest.raises(InvalidRequest):
        await session.verify(drafts, stated)
    alone = await collect(session)
    assert len(alone[0]) == 9
    assert await neighbour == alone


OPENS = {
    "no prompt": ([], Sampling(), []),
    "prompt beyond the vocabulary": ([VOCAB], Sampling(), []),
    "negative prompt": ([-1], Sampling(), []),
    "log beyond the vocabulary": (PROMPT, Sampling(), [VOCAB]),
    "log longer than the output": (PROMPT, Sampling(max_tokens=2), [5, 5, 5]),
    "no output": (PROMPT, Sampling(max_tokens=0), []),
    "temperature": (PROMPT, Sampling(temperature=float("nan")), []),
    "top_k": (PROMPT, Sampling(top_k=-1), []),
    "top_p": (PROMPT, Sampling(top_p=0.0), []),
    "repetition_penalty": (PROMPT, Sampling(repetition_penalty=0.0), []),
    "presence_penalty": (PROMPT, Sampling(presence_penalty=3.0), []),
    "frequency_penalty": (PROMPT, Sampling(frequency_penalty=-3.0), []),
    "seed": (PROMPT, Sampling(seed=2**63), []),
    "stop": (PROMPT, Sampling(stop=("",)), []),
    "stop_tokens": (PROMPT, Sampling(stop_tokens=(-1,)), []),
    "logprobs": (PROMPT, Sampling(logprobs=21), []),
    "min_tokens": (PROMPT, Sampling(min_tokens=-1), []),
    "min_tokens of a grammar": (PROMPT, Sampling(min_tokens=1, grammar=Grammar("json_object")), []),
    "min_p": (PROMPT, Sampling(min_p=1.1), []),
    "logit_bias": (PROMPT, Sampling(logit_bias=((5, 101.0),)), []),
    "logit_bias beyond the vocabulary": (PROMPT, Sampling(logit_bias=((VOCAB, 1.0),)), []),
}


@pytest.mark.parametrize("name", OPENS)
async def test_bad_requests_are_refused(engine: CoreEngine, name: str) -> None:
    prompt, sampling, log = OPENS[name]
    with pytest.raises(InvalidRequest) as caught:
        await engine.open(prompt, sampling, log)
    assert not isinstance(caught.value, ContextOverflow)
    assert (await engine.stats()).sessions == 0


EXTREMES = [
    Sampling(temperature=5e-324, max_tokens=3),
    Sampling(temperature=10.0, top_k=2**64, max_tokens=3),
    Sampling(temperature=1.0, top_p=5e-324, max_tokens=3),
    Sampling(temperature=1.0, repetition_penalty=1e-300, max_tokens=3),
    Sampling(max_tokens=3, logprobs=20, stop_tokens=(2**70,), seed=2**63 - 1),
]


@pytest.mark.parametrize("sampling", EXTREMES, ids=range(len(EXTREMES)))
async def test_extreme_values_that_are_allowed_work(engine: CoreEngine, sampling: Sampling) -> None:
    session = await engine.open(PROMPT, sampling)
    ids, finish = await collect(session)
    assert finish
    assert all(0 <= i < VOCAB for i in ids)
    draft = await session.draft(0, [], 3)
    assert draft.ids
    await session.extend(0, [])
    assert (await session.verify(draft.ids[:2])).ids


async def test_what_does_not_fit_is_refused(engines: Engines) -> None:
    by_context = engines.start()
    session = await by_context.open([5] * 100, endless(CONTEXT - 100))
    with pytest.raises(ContextOverflow, match=f"{CONTEXT} that fit"):
        await by_context.open([5] * 100, endless(CONTEXT - 99))
    assert len((await collect(session))[0]) == CONTEXT - 100
    by_cache = engines.start(kv_blocks=8)
    session = await by_cache.open([5] * 20, endless(12))
    with pytest.raises(ContextOverflow, match="32 that fit"):
        await by_cache.open([5] * 20, endless(13))
    assert len((await collect(session))[0]) == 12


async def test_no_room_for_another_session(engines: Engines) -> None:
    engine = engines.start(max_sessions=3, max_waiting=0)
    sessions = [await engine.open(PROMPT, endless(4)) for _ in range(3)]
    with pytest.raises(NoCapacity, match="3 sessions") as caught:
        await engine.open(PROMPT, endless(4))
    assert caught.value.retry_after_s > 0
    await sessions[0].cancel()
    assert len((await collect(await engine.open(PROMPT, endless(4))))[0]) == 4


async def test_no_room_to_wait(engines: Engines) -> None:
    engine = engines.start(kv_blocks=8, max_sessions=1, max_waiting=2)
    first = await engine.open([5] * 24, endless(4))
    others = []
    for _ in range(2):
        others.append(await engine.open([6] * 24, endless(4)))
        await handled(engine)
    assert (await engine.stats()).waiting == 2
    with pytest.raises(NoCapacity):
        await engine.open([6], endless(4))
    await first.cancel()
    assert len((await collect(others[0]))[0]) == 4  # who waited is served


@pytest.mark.parametrize(("position", "tokens"), [(-1, []), (1, []), (0, [5] * 5), (0, [VOCAB]), (0, [-1])])
async def test_bad_positions_and_tokens(engine: CoreEngine, position: int, tokens: list[int]) -> None:
    session = await engine.open(PROMPT, endless(4))
    with pytest.raises(InvalidRequest):
        await session.extend(position, tokens)
    with pytest.raises(InvalidRequest):
        await session.draft(position, tokens, 2)
    with pytest.raises(InvalidRequest, match="window"):
        await session.draft(0, [], -1)
    assert len((await collect(session))[0]) == 4


# -- the end --------------------------------------------------------------------------------------------


async def test_close_fails_what_is_under_way_and_ends_the_thread(engine: CoreEngine, gate: Gate) -> None:
    session = await engine.open(PROMPT, endless())
    stream = session.generate()
    gate.steps(3)
    await anext(stream)
    other = await engine.open([5] * 100, endless(20))
    verify = asyncio.create_task(other.verify([5] * 9))
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)  # now both have begun
    gate.open()
    await closing
    assert not thread(engine).is_alive()
    assert thread(engine) not in threading.enumerate()
    with pytest.raises(EngineStopped):
        await exhaust(stream)
    with pytest.raises(EngineStopped):
        await verify
    with pytest.raises(EngineStopped):
        await engine.open(PROMPT, endless())
    with pytest.raises(EngineStopped):
        await session.verify([])
    await session.cancel()
    await engine.close()


async def test_a_crash_of_the_step_fails_all_sessions(
    engine: CoreEngine, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    session = await engine.open(PROMPT, endless())
    stream = session.generate()
    gate.steps(3)
    await anext(stream)
    other = await engine.open([5] * 100, endless(20))
    verify = asyncio.create_task(other.verify([5] * 9))
    await asyncio.sleep(0)  # now both have begun
    gate.fail(RuntimeError("injected fault"))
    with pytest.raises(EngineStopped, match="injected fault"):
        await verify
    with pytest.raises(EngineStopped, match="injected fault"):
        await exhaust(stream)
    assert gate.faults == 1
    # or it would look like one without work, which draws everything
    with pytest.raises(EngineStopped, match="injected fault"):
        await engine.stats()
    assert "broke down" in caplog.text
    for call in (other.verify([]), engine.open(PROMPT, endless()), anext(session.generate())):
        with pytest.raises(EngineStopped):
            await call
    thread(engine).join(10)
    assert not thread(engine).is_alive()


async def test_a_crash_before_any_operation_is_told_to_the_first(
    engine: CoreEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner(engine).model, "batch", None)
    session = await engine.open(PROMPT, endless())
    thread(engine).join(10)
    with pytest.raises(EngineStopped):
        await session.verify([])


async def test_errors_have_codes() -> None:
    codes = {e.code for e in (*EngineError.__subclasses__(), *InvalidRequest.__subclasses__())}
    assert len(codes) == len(EngineError.__subclasses__()) + len(InvalidRequest.__subclasses__())


async def test_an_end_of_sequence_token_ends_the_output(engines: Engines) -> None:
    """Use a prompt whose continuation reaches it, found by trying."""
    engine = engines.start()
    sampling = Sampling(max_tokens=60)
    prompt = next(p for p in ([a, b] for a in range(3, VOCAB) for b in range(3, VOCAB))
                  if engines.greedy(p, Sampling(max_tokens=4))[0][-1] == EOS)  # fmt: skip
    session = await engine.open(prompt, sampling)
    assert await collect(session) == engines.greedy(prompt, sampling)
    items: list[Tokens] = [tokens async for tokens in session.generate()]
    assert items == [Tokens([], "stop")]


async def test_more_sessions_than_places(engines: Engines) -> None:
    """Sessions beyond `max_sessions` wait, and those with work go before those that only rest."""
    engine = engines.start(max_sessions=2, max_waiting=4)
    sessions = [await engine.open(PROMPT, endless(4)) for _ in range(6)]
    with pytest.raises(NoCapacity):
        await engine.open(PROMPT, endless(4))
    outputs = [(await collect(sessions[i]))[0] for i in (5, 0, 3, 1, 4, 2)]
    assert all(ids == outputs[0] and len(ids) == 4 for ids in outputs)


@pytest.mark.parametrize("policy", slow_after(2, sorted(scheduling)))
async def test_whoever_gives_way_says_the_same(engines: Engines, policy: str) -> None:
    """Three times as many sessions as may run, over a cache that holds a few, and a slow link to host memory."""
    engine = engines.start(
        kv_blocks=32,
        scheduling=SchedulingChoice(name=policy),
        max_running=4,
        max_sessions=32,
        host_memory=HostMemory(blocks=256, copy_mb_per_s=50.0),
    )
    sampling = [Sampling(max_tokens=30 + i, ignore_eos=True, reader_rate=100.0 + 50 * i) for i in range(12)]
    prompts = [[10 + i] * (3 + 2 * i) for i in range(12)]
    sessions = [await engine.open(prompts[i], sampling[i]) for i in range(12)]
    said = await asyncio.gather(*(collect(s) for s in sessions))
    for i in range(12):
        assert said[i] == engines.greedy(prompts[i], sampling[i])
        await sessions[i].cancel()
    stats = await handled(engine)
    assert stats.decisions > 0
    assert stats.blocks_free == 32
    assert stats.finished == 12
