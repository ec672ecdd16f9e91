"""Contract of every engine. A test module runs `CHECKS` against its engines:

@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
async def test_contract(check, engine, prompt): await check(engine, prompt)

A check opens sessions of its own and cancels them. Sampling is greedy and ignores the end of sequence,
so that the number of tokens is known. `SPECULATIVE` are those of CHECKS that ask an engine to verify and draft;
`GRAMMATICAL` is for engines that follow grammars, and takes the tokenizer in place of the prompt;
`FORWARDING` is for the middle of a split model, whose prompt is empty.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest

from tandem.engine.base import (
    CAPABILITIES,
    ContextOverflow,
    Engine,
    EngineStopped,
    Grammar,
    InvalidRequest,
    Sampling,
    Session,
    SessionCancelled,
    Tensor,
    Tokens,
    UnknownSession,
)
from tandem.engine.text.detokenizer import Spelling
from tandem.engine.text.tokenizer import Tokenizer

TOKENS = 12


def greedy(max_tokens: int = TOKENS, stop_tokens: tuple[int, ...] = ()) -> Sampling:
    return Sampling(max_tokens=max_tokens, ignore_eos=True, stop_tokens=stop_tokens)


@asynccontextmanager
async def session(
    engine: Engine, prompt: Sequence[int], sampling: Sampling | None = None, log: Sequence[int] = ()
) -> AsyncIterator[Session]:
    """A session that is cancelled at the end."""
    opened = await engine.open(prompt, sampling or greedy(), log)
    try:
        yield opened
    finally:
        await opened.cancel()


async def drain(s: Session) -> tuple[list[int], str | None]:
    """Return the rest of generate's tokens, and how it finished."""
    ids: list[int] = []
    finish = None
    async for tokens in s.generate():
        assert finish is None, "nothing may follow the item with finish"
        ids += tokens.ids
        finish = tokens.finish
    return ids, finish


async def exhaust(stream: AsyncIterator[Tokens]) -> None:
    async for _ in stream:
        pass


def operations(s: Session) -> dict[str, Callable[[], Awaitable[object]]]:
    """A call of each operation, by name."""
    states = Tensor.of(np.zeros((1, 4), np.float32))
    return {
        "generate": lambda: exhaust(s.generate()),
        "verify": lambda: s.verify([]),
        "draft": lambda: s.draft(0, [], 1),
        "forward": lambda: s.forward(0, states, 1),
        "extend": lambda: s.extend(0, []),
    }


async def answer(engine: Engine, prompt: Sequence[int]) -> list[int]:
    async with session(engine, prompt) as s:
        return (await drain(s))[0]


async def generates_to_the_length_asked_for(engine: Engine, prompt: list[int]) -> None:
    async with session(engine, prompt) as s:
        ids, finish = await drain(s)
        assert (len(ids), finish) == (TOKENS, "length")
        assert all(0 <= i < engine.info.vocab_size for i in ids)
        assert await drain(s) == ([], "length")  # it stays finished, and open


async def repeats_itself(engine: Engine, prompt: list[int]) -> None:
    assert await answer(engine, prompt) == await answer(engine, prompt)


async def continues_a_log(engine: Engine, prompt: list[int]) -> None:
    whole = await answer(engine, prompt)
    async with session(engine, prompt, log=whole[:5]) as s:
        assert (await drain(s))[0] == whole[5:]


async def stops_at_a_stop_token(engine: Engine, prompt: list[int]) -> None:
    whole = await answer(engine, prompt)
    async with session(engine, prompt, greedy(stop_tokens=(whole[3],))) as s:
        ids, finish = await drain(s)
    assert finish == "stop"
    assert ids == whole[: len(ids)]
    assert len(ids) <= whole.index(whole[3]) + 1


async def accepts_its_own_tokens(engine: Engine, prompt: list[int]) -> None:
    whole = await answer(engine, prompt)
    async with session(engine, prompt) as s:
        verdict = await s.verify(whole[:4])
        assert (verdict.accepted, verdict.ids, verdict.finish) == (4, whole[:5], None)
        assert (await s.verify([])).ids == whole[5:6]


async def corrects_a_wrong_draft(engine: Engine, prompt: list[int]) -> None:
    whole = await answer(engine, prompt)
    wrong = (whole[2] + 1) % engine.info.vocab_size
    async with session(engine, prompt) as s:
        verdict = await s.verify([*whole[:2], wrong, whole[3]])
        assert (verdict.accepted, verdict.ids) == (2, whole[:3])
        assert (await drain(s))[0] == whole[3:]


async def finishes_in_verification(engine: Engine, prompt: list[int]) -> None:
    whole = await answer(engine, prompt)
    async with session(engine, prompt, log=whole[:-2]) as s:
        verdict = await s.verify([*whole[-2:], 1, 1])
        assert (verdict.ids, verdict.finish) == (whole[-2:], "length")


async def speculation_is_lossless(engine: Engine, prompt: list[int]) -> None:
    """The engine drafts for itself; now and then a draft is spoilt."""
    whole = await answer(engine, prompt)
    async with session(engine, prompt) as target, session(engine, prompt) as drafter:
        output: list[int] = []
        news: list[int] = []
        finish = None
        while finish is None:
            draft = (await drafter.draft(len(output) - len(news), news, 4)).ids
            if len(output) % 2 and draft:
                draft[-1] = (draft[-1] + 1) % engine.info.vocab_size
            verdict = await target.verify(draft)
            news, finish = verdict.ids, verdict.finish
            output += news
        assert output == whole


async def drafts_are_tentative(engine: Engine, prompt: list[int]) -> None:
    async with session(engine, prompt) as s:
        first = await s.draft(0, [], 4)
        assert 1 <= len(first.ids) <= 4
        again = await s.draft(0, [], 4)
        assert again.ids == first.ids


async def drafts_no_further_than_the_end(engine: Engine, prompt: list[int]) -> None:
    whole = await answer(engine, prompt)
    async with session(engine, prompt) as s:
        assert len((await s.draft(0, whole[:-1], 8)).ids) == 1


async def rolls_back(engine: Engine, prompt: list[int]) -> None:
    async with session(engine, prompt) as s:
        whole, _ = await drain(s)
        await s.extend(3, [])
        assert (await drain(s))[0] == whole[3:]
        await s.extend(2, whole[2:6])
        assert (await drain(s))[0] == whole[6:]


async def generate_may_be_left_and_resumed(engine: Engine, prompt: list[int]) -> None:
    whole = await answer(engine, prompt)
    async with session(engine, prompt) as s:
        async with aclosing(s.generate()) as stream:
            ids = (await anext(stream)).ids
        await s.extend(0, ids)
        assert ids + (await drain(s))[0] == whole


async def cancel_ends_what_runs(engine: Engine, prompt: list[int]) -> None:
    """A stream that somebody waits for, and one that rests between two items."""
    longest = min(engine.info.context - len(prompt), 50_000)
    async with session(engine, prompt, greedy(longest)) as s, session(engine, prompt, greedy(longest)) as t:
        awaited, resting = s.generate(), t.generate()
        await anext(awaited)
        await anext(resting)
        waiting = asyncio.create_task(exhaust(awaited))
        await asyncio.sleep(0)
        assert not waiting.done()
        await s.cancel()
        await t.cancel()
        with pytest.raises(SessionCancelled):
            await waiting
        with pytest.raises(SessionCancelled):
            await exhaust(resting)


async def nothing_follows_cancel(engine: Engine, prompt: list[int]) -> None:
    async with session(engine, prompt) as s:
        await s.cancel()
        await s.cancel()  # does nothing
        calls = operations(s)
        for name in (*engine.info.capabilities, "extend"):
            with pytest.raises(UnknownSession):
                await calls[name]()


async def one_operation_at_a_time(engine: Engine, prompt: list[int]) -> None:
    whole = await answer(engine, prompt)
    async with session(engine, prompt) as s:
        stream = s.generate()
        ids = (await anext(stream)).ids
        for call in operations(s).values():
            with pytest.raises(InvalidRequest):
                await call()
        async for tokens in stream:
            ids += tokens.ids
        assert ids == whole  # unharmed
        await s.extend(len(ids), [])  # the stream has ended


async def refuses_what_it_lacks(engine: Engine, prompt: list[int]) -> None:
    async with session(engine, prompt) as s:
        calls = operations(s)
        for name in set(CAPABILITIES) - set(engine.info.capabilities):
            with pytest.raises(InvalidRequest, match=name):
                await calls[name]()
        assert len((await drain(s))[0]) == TOKENS  # unharmed


async def a_cancelled_open_leaves_nothing_behind(engine: Engine, prompt: list[int]) -> None:
    """Wherever in it the cancellation comes: after so many turns of the event loop."""
    before = (await engine.stats()).sessions
    for turns in range(12):
        opening = asyncio.create_task(engine.open(prompt, greedy()))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait((opening,))
        if not opening.cancelled():
            await opening.result().cancel()
        async with asyncio.timeout(10):
            while (await engine.stats()).sessions != before:  # noqa: ASYNC110 (engines have no such event)
                await asyncio.sleep(0)


async def sessions_do_not_mix(engine: Engine, prompt: list[int]) -> None:
    other = [*prompt, prompt[0]]
    whole, others = await answer(engine, prompt), await answer(engine, other)
    async with session(engine, prompt) as s, session(engine, other) as t:
        first, second = s.generate(), t.generate()
        ids, other_ids = (await anext(first)).ids, (await anext(second)).ids
        async for tokens in first:
            ids += tokens.ids
        async for tokens in second:
            other_ids += tokens.ids
    assert (ids, other_ids) == (whole, others)


async def refuses_what_makes_no_sense(engine: Engine, prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest):
        await engine.open([], greedy())
    with pytest.raises(InvalidRequest):
        await engine.open([engine.info.vocab_size], greedy())
    with pytest.raises(InvalidRequest, match="temperature"):
        await engine.open(prompt, Sampling(temperature=-1.0))
    with pytest.raises(ContextOverflow):
        await engine.open(prompt, greedy(engine.info.context))
    async with session(engine, prompt) as s:
        with pytest.raises(InvalidRequest):
            await s.extend(1, [])
        assert len((await drain(s))[0]) == TOKENS  # unharmed


async def counts(engine: Engine, prompt: list[int]) -> None:
    before = await engine.stats()
    ended = before.finished + before.cancelled
    async with session(engine, prompt), session(engine, prompt) as s:
        await drain(s)
        during = await engine.stats()
    async with asyncio.timeout(10):  # whatever counts may do so a little later
        while (after := await engine.stats()).finished + after.cancelled < ended + 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert (during.sessions, during.running) == (before.sessions + 2, before.running)
    assert (after.sessions, after.opened) == (before.sessions, before.opened + 2)
    assert (after.finished, after.cancelled) == (before.finished + 1, before.cancelled + 1)
    assert after.tokens_generated == before.tokens_generated + TOKENS


SPECULATIVE = [
    accepts_its_own_tokens,
    corrects_a_wrong_draft,
    finishes_in_verification,
    speculation_is_lossless,
    drafts_are_tentative,
    drafts_no_further_than_the_end,
]
CHECKS = [
    *SPECULATIVE,
    generates_to_the_length_asked_for,
    repeats_itself,
    continues_a_log,
    stops_at_a_stop_token,
    rolls_back,
    generate_may_be_left_and_resumed,
    cancel_ends_what_runs,
    nothing_follows_cancel,
    one_operation_at_a_time,
    refuses_what_it_lacks,
    a_cancelled_open_leaves_nothing_behind,
    sessions_do_not_mix,
    refuses_what_makes_no_sense,
    counts,
]


NUMBERS = Grammar("regex", "[0-3]{1,2}(,[0-5]{2})?")
_LEADING = [*"0123", *(a + b for a, b in product("0123", repeat=2))]
LANGUAGE = frozenset(
    (leading + rest).encode()
    for leading in _LEADING
    for rest in ("", *(f",{a}{b}" for a, b in product("012345", repeat=2)))
)
"""All texts of NUMBERS."""
BEFORE = [20, 21, 22]
"""Prompt of the checks of grammars."""


def ruled(seed: int | None = None, grammar: Grammar = NUMBERS) -> Sampling:
    """Sampling by a grammar; greedy without a seed."""
    return Sampling(max_tokens=TOKENS, temperature=float(seed is not None), seed=seed or 0, grammar=grammar)


def begins(text: bytes) -> bool:
    """Whether a text of LANGUAGE begins so."""
    return any(whole.startswith(text) for whole in LANGUAGE)


async def follows_a_grammar(engine: Engine, tokenizer: Spelling) -> None:
    texts = set()
    for seed in (None, *range(12)):
        async with session(engine, BEFORE, ruled(seed)) as s:
            ids, finish = await drain(s)
        assert finish == "stop"
        texts.add(tokenizer.shown_bytes(ids))
    assert texts <= LANGUAGE
    assert len(texts) > 2


async def rules_bind_their_own_session(engine: Engine, tokenizer: Spelling) -> None:
    """Beside one without, in the same steps."""
    free = await answer(engine, BEFORE)
    async with session(engine, BEFORE, ruled()) as s:
        whole = await drain(s)

    async def one(sampling: Sampling) -> tuple[list[int], str | None]:
        async with session(engine, BEFORE, sampling) as s:
            return await drain(s)

    outputs = await asyncio.gather(*(one(s) for s in (greedy(), ruled(), greedy(), ruled(7))))
    assert outputs[:3] == [(free, "length"), whole, (free, "length")]
    assert tokenizer.shown_bytes(outputs[3][0]) in LANGUAGE


async def a_grammar_goes_on_after_a_log(engine: Engine, tokenizer: Spelling) -> None:
    for seed in (None, 3):
        async with session(engine, BEFORE, ruled(seed)) as s:
            whole, finish = await drain(s)
        for cut in range(len(whole) + 1):
            async with session(engine, BEFORE, ruled(seed), log=whole[:cut]) as s:
                rest, ended = await drain(s)
            assert ended == finish == "stop"
            assert tokenizer.shown_bytes([*whole[:cut], *rest]) in LANGUAGE
            if seed is None:
                assert rest == whole[cut:]


async def a_grammar_steps_back(engine: Engine, tokenizer: Spelling) -> None:
    async with session(engine, BEFORE, ruled()) as s:
        whole = await drain(s)
        await s.extend(1, [])
        assert await drain(s) == (whole[0][1:], whole[1])
        other = next(t for t in range(engine.info.vocab_size) if tokenizer.shown_bytes([t]) == b"1")
        await s.extend(0, [other, other])
        ids, finish = await drain(s)
        assert finish == "stop"
        assert tokenizer.shown_bytes([other, other, *ids]) in LANGUAGE


async def speculates_by_a_grammar(engine: Engine, tokenizer: Spelling) -> None:
    """Drafts follow it too; one that does not is rejected."""
    spoilt_ones = 0
    for seed in (None, *range(8)):
        async with session(engine, BEFORE, ruled(seed)) as s:
            whole, _ = await drain(s)
        spoilt = next(t for t in range(20) if not begins(b"0" + (tokenizer.shown_bytes([t]) or b"!")))
        async with (
            session(engine, BEFORE, ruled(seed)) as target,
            session(engine, BEFORE, ruled(seed)) as drafter,
        ):
            output: list[int] = []
            news: list[int] = []
            finish = None
            while finish is None:
                drafts = await drafter.draft(len(output) - len(news), news, 4)
                assert begins(tokenizer.shown_bytes([*output, *drafts.ids]))
                ids, probs = list(drafts.ids), drafts.probs
                if len(output) % 2:
                    ids, probs = [*ids[:1], spoilt, *ids[1:]], None
                    spoilt_ones += 1
                verdict = await target.verify(ids, probs)
                assert verdict.accepted <= (1 if spoilt in ids else len(ids))
                news, finish = verdict.ids, verdict.finish
                output += news
        assert finish == "stop"
        assert tokenizer.shown_bytes(output) in LANGUAGE
        if seed is None:
            assert output == whole
    assert spoilt_ones


async def a_form_comes_behind_thoughts(engine: Engine, tokenizer: Spelling) -> None:
    """Begins behind their end, also where an output goes back."""
    thought, mark = (
        next(t for t in range(engine.info.vocab_size) if tokenizer.shown_bytes([t]) == data)
        for data in (b"0", b"!")
    )
    grammar = msgspec.structs.replace(NUMBERS, end="!")
    for seed in (None, *range(8)):
        async with session(engine, BEFORE, ruled(seed, grammar), log=[thought, mark]) as s:
            ids, finish = await drain(s)
            assert finish == "stop"
            assert tokenizer.shown_bytes(ids).strip() in LANGUAGE
            await s.extend(0, [thought])
            verdict = await s.verify([thought, thought])
            assert verdict.finish is None
            await s.extend(0, [thought, mark])
            verdict = await s.verify([mark, thought])
            assert verdict.accepted == 0
            assert begins(tokenizer.shown_bytes(verdict.ids).strip())


async def a_grammar_names_special_tokens(engine: Engine, tokenizer: Tokenizer) -> None:
    """And no text stands for one. A name that the vocabulary lacks is refused."""
    first, second = 4, 3
    names = tuple(tokenizer.special_name(token) or "" for token in (first, second))
    source = "%llguidance {}\nstart: token_0 NUMBER token_1 NUMBER\nNUMBER: /[0-3]{1,2}/"
    grammar = Grammar("grammar", source, tokens=names)
    for seed in (None, *range(4)):
        async with session(engine, BEFORE, ruled(seed, grammar)) as s:
            ids, finish = await drain(s)
        assert finish == "stop"
        assert ids[0] == first
        assert [token for token in ids if token in (first, second)] == [first, second]
        assert tokenizer.shown_bytes(ids).isdigit()
        for cut in (1, ids.index(second), ids.index(second) + 1):
            async with session(engine, BEFORE, ruled(seed, grammar), log=ids[:cut]) as s:
                rest, ended = await drain(s)
            assert ended == "stop"
            assert second in [*ids[:cut], *rest]
    with pytest.raises(InvalidRequest, match="no special token '<none>'"):
        await engine.open(BEFORE, ruled(grammar=Grammar("grammar", source, tokens=(names[0], "<none>"))))


async def refuses_a_broken_grammar(engine: Engine, tokenizer: Spelling) -> None:
    """Name what is broken, and leave nothing behind."""
    before = (await engine.stats()).sessions
    for grammar, named in (
        (Grammar("regex", "a("), "regex"),
        (Grammar("json_schema", '{"type": "nonsense"}'), "json schema"),
        (Grammar("grammar", "start: missing"), "missing"),
        (Grammar("choice", "no list"), "choice"),
    ):
        with pytest.raises(InvalidRequest, match=named):
            await engine.open(BEFORE, ruled(grammar=grammar))
    with pytest.raises(InvalidRequest, match="ignore_eos"):
        await engine.open(BEFORE, Sampling(grammar=NUMBERS, ignore_eos=True))
    assert (await engine.stats()).sessions == before


async def tells_when_an_output_leaves_its_grammar(engine: Engine, tokenizer: Spelling) -> None:
    wrong = next(t for t in range(engine.info.vocab_size) if tokenizer.shown_bytes([t]) == b"!")
    with pytest.raises(InvalidRequest, match="grammar"):
        await engine.open(BEFORE, ruled(), [wrong])
    async with session(engine, BEFORE, ruled()) as s:
        await s.extend(0, [wrong])
        with pytest.raises(InvalidRequest, match="grammar"):
            await drain(s)
        with pytest.raises(InvalidRequest, match="grammar"):
            await s.verify([wrong])
        await s.extend(0, [])  # it is open, and goes on
        assert tokenizer.shown_bytes((await drain(s))[0]) in LANGUAGE


GRAMMATICAL = [
    follows_a_grammar,
    rules_bind_their_own_session,
    a_grammar_goes_on_after_a_log,
    a_grammar_steps_back,
    speculates_by_a_grammar,
    a_form_comes_behind_thoughts,
    a_grammar_names_special_tokens,
    refuses_a_broken_grammar,
    tells_when_an_output_leaves_its_grammar,
]


WIDTH = 16
"""Numbers of a token's hidden states, of the engines whose sessions forward."""


def hidden(seed: int, count: int = TOKENS) -> np.ndarray:
    """Hidden states [count, WIDTH]."""
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


async def forwarded(engine: Engine, rows: np.ndarray) -> np.ndarray:
    """All of them at once, in a session of their own."""
    async with session(engine, []) as s:
        return (await s.forward(0, Tensor.of(rows), len(rows))).hidden.numpy()


def alike(rows: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-5)


async def forwards_in_parts_as_at_once(engine: Engine, _: list[int]) -> None:
    """And gives back no more than is wanted."""
    rows = hidden(1)
    expected = await forwarded(engine, rows)
    async with session(engine, []) as s:
        for start, end, wanted in ((0, 5, 0), (5, 6, 1), (6, 12, 4)):
            part = await s.forward(start, Tensor.of(rows[start:end]), wanted)
            assert part.hidden.shape[0] == wanted
            if wanted:
                alike(part.hidden.numpy(), expected[end - wanted : end])


async def forgets_what_is_rolled_back(engine: Engine, _: list[int]) -> None:
    """Continue after a roll-back with the next states, and without any."""
    rows, other = hidden(1), hidden(2)
    expected = await forwarded(engine, rows)
    async with session(engine, []) as s:
        await s.forward(0, Tensor.of(np.concatenate([rows[:4], other[:6]])), 1)
        alike((await s.forward(4, Tensor.of(rows[4:7]), 3)).hidden.numpy(), expected[4:7])
        await s.forward(7, Tensor.of(other[:2]), 0)
        await s.extend(6, [])
        with pytest.raises(InvalidRequest):
            await s.forward(7, Tensor.of(rows[7:8]), 1)
        alike((await s.forward(6, Tensor.of(rows[6:]), 6)).hidden.numpy(), expected[6:])


async def forwards_many_together(engine: Engine, _: list[int]) -> None:
    """Chunks and windows of many sessions in steps of any mixture, equal states among them."""
    sizes = [(3, 1), (12, 12), (7, 2), (1, 1), (12, 0), (12, 12)]
    rows = [hidden(3 + i % 5, count) for i, (count, _) in enumerate(sizes)]
    expected = [await forwarded(engine, each) for each in rows]

    async def one(i: int) -> None:
        async with session(engine, []) as s:
            count, wanted = sizes[i]
            first = count // 2
            await s.forward(0, Tensor.of(rows[i][:first]), 0)
            after = min(wanted, count - first)
            part = await s.forward(first, Tensor.of(rows[i][first:]), after)
            if after:
                alike(part.hidden.numpy(), expected[i][count - after :])

    await asyncio.gather(*map(one, range(len(sizes))))


async def learns_of_no_token(engine: Engine, _: list[int]) -> None:
    for refused in (engine.open([5], greedy()), engine.open([], greedy(), [5])):
        with pytest.raises(InvalidRequest):
            await refused
    for telling in (
        Sampling(stop=("word",)),
        Sampling(stop_tokens=(5,)),
        Sampling(temperature=1.0, seed=3),
        Sampling(logprobs=2),
    ):
        with pytest.raises(InvalidRequest):
            await engine.open([], telling)
    with pytest.raises(ContextOverflow):
        await engine.open([], greedy(engine.info.context + 1))
    async with session(engine, []) as s:
        with pytest.raises(InvalidRequest):
            await s.extend(0, [5])
        for name, call in operations(s).items():
            if name not in ("forward", "extend"):
                with pytest.raises(InvalidRequest, match=name):
                    await call()


async def refuses_states_that_do_not_fit(engine: Engine, _: list[int]) -> None:
    rows = hidden(1)
    async with session(engine, []) as s:
        for position, states, wanted in (
            (1, Tensor.of(rows), 1),
            (0, Tensor.of(rows), 13),
            (0, Tensor.of(rows[:, :5]), 1),
            (0, Tensor.of(rows.astype(np.float64)), 1),
            (0, Tensor((2, WIDTH), "float32", memoryview(b"1")), 1),
            (0, Tensor.of(np.concatenate([rows, rows])), 1),  # of 12 that may be
        ):
            with pytest.raises(InvalidRequest):
                await s.forward(position, states, wanted)
        alike(
            (await s.forward(0, Tensor.of(rows), 12)).hidden.numpy(), await forwarded(engine, rows)
        )  # unharmed


async def forwards_follow_one_another(engine: Engine, _: list[int]) -> None:
    """Asked for at once, they run in that order; each tells of the batch that it was computed in."""
    rows = hidden(1)
    expected = await forwarded(engine, rows)
    async with session(engine, []) as s:
        parts = [(0, 5, 0), (5, 6, 1), (6, 12, 4)]
        running = [
            asyncio.ensure_future(s.forward(start, Tensor.of(rows[start:end]), wanted))
            for start, end, wanted in parts
        ]
        await asyncio.sleep(0)
        with pytest.raises(InvalidRequest):  # one operation at a time
            await s.extend(0, [])
        answers = await asyncio.gather(*running)
        for (start, end, wanted), answer in zip(parts, answers, strict=True):
            assert answer.batch_tokens == end - start
            assert min(answer.batch_s, answer.took_s) > 0
            if wanted:
                alike(answer.hidden.numpy(), expected[end - wanted : end])
        assert (await s.forward(12, Tensor.of(rows[:0]), 0)).batch_tokens == 0, "nothing was computed"


async def cancel_ends_a_forward(engine: Engine, _: list[int]) -> None:
    """And those that wait for their turn behind it."""
    async with session(engine, []) as s:
        running = [asyncio.ensure_future(s.forward(0, Tensor.of(hidden(1)), 1)) for _ in range(3)]
        await asyncio.sleep(0)
        await s.cancel()
        for each in running:
            with pytest.raises((SessionCancelled, UnknownSession)):
                await each


FORWARDING = [
    forwards_in_parts_as_at_once,
    forgets_what_is_rolled_back,
    forwards_many_together,
    learns_of_no_token,
    refuses_states_that_do_not_fit,
    forwards_follow_one_another,
    cancel_ends_a_forward,
    nothing_follows_cancel,
    a_cancelled_open_leaves_nothing_behind,
]
"""Contract of an engine that only forwards, in place of CHECKS. Its prompt argument is unused."""


@contextmanager
def by_reference_counting() -> Iterator[None]:
    """Run without the garbage collector: whatever is part of a reference cycle stays."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def close_ends_it(
    make: Callable[[], Engine],
    prompt: list[int],
    parts: Callable[[Any], Sequence[object]] = lambda _: (),
    step_s: float = 0.0,
) -> None:
    """`close` ends every session, and frees the engine at once.

    parts: returns objects that have to be freed with the engine, such as its model's weights.
    step_s: seconds that a step under way may still take.

    Not among CHECKS: the engine is no use after it, and a remote one is not the caller's to stop.
    """
    with by_reference_counting():
        watched = await _closed(make(), prompt, parts)
        await asyncio.sleep(step_s)  # at least a turn of the loop, which holds the task that has just ended
        assert [part() for part in watched] == [None] * len(watched)


async def _closed(
    engine: Engine, prompt: list[int], parts: Callable[[Any], Sequence[object]]
) -> list[weakref.ref[object]]:
    """Close an engine whose sessions run, rest and have refused something; return references to what is to go."""
    longest = greedy(min(engine.info.context - len(prompt), 50_000))
    async with session(engine, prompt) as resting, session(engine, prompt, longest) as s:
        with pytest.raises(InvalidRequest):
            await resting.extend(1, [])
        decodes = "generate" in engine.info.capabilities
        call = exhaust(s.generate()) if decodes else s.forward(0, Tensor.of(hidden(1)), 1)
        running = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        await engine.close()
        with pytest.raises(EngineStopped):
            await running
        del running  # its exception holds this frame
        for operation in ("extend", *engine.info.capabilities):
            with pytest.raises(EngineStopped):
                await operations(resting)[operation]()
        with pytest.raises(EngineStopped):
            await engine.open(prompt, greedy())
    return [weakref.ref(part) for part in (engine, *parts(engine))]
