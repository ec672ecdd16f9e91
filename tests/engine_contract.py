"""What every engine owes its callers. A test module runs `CHECKS` against its engines:

@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
async def test_contract(check, engine, prompt): await check(engine, prompt)

A check opens sessions of its own and cancels them. Sampling is greedy and ignores the end of sequence,
so that the number of tokens is known.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import count

import pytest

from engine.base import (
    ContextOverflow,
    Engine,
    EngineStopped,
    InvalidRequest,
    Sampling,
    SessionCancelled,
    Tokens,
    UnknownSession,
)

TOKENS = 12
_ids = count(1)


def greedy(max_tokens: int = TOKENS, stop_tokens: tuple[int, ...] = ()) -> Sampling:
    return Sampling(max_tokens=max_tokens, ignore_eos=True, stop_tokens=stop_tokens)


@asynccontextmanager
async def session(
    engine: Engine, prompt: Sequence[int], sampling: Sampling | None = None, log: Sequence[int] = ()
) -> AsyncIterator[int]:
    """A session of its own id, cancelled at the end."""
    session_id = next(_ids)
    await engine.open(session_id, prompt, sampling or greedy(), log)
    try:
        yield session_id
    finally:
        await engine.cancel(session_id)


async def drain(engine: Engine, session_id: int) -> tuple[list[int], str | None]:
    """Everything that generate still gives, and how it finished."""
    ids: list[int] = []
    finish = None
    async for tokens in engine.generate(session_id):
        assert finish is None, "nothing may follow the item with finish"
        ids += tokens.ids
        finish = tokens.finish
    return ids, finish


async def exhaust(stream: AsyncIterator[Tokens]) -> None:
    async for _ in stream:
        pass


async def answer(engine: Engine, prompt: Sequence[int]) -> list[int]:
    async with session(engine, prompt) as s:
        return (await drain(engine, s))[0]


async def generates_to_the_length_asked_for(engine: Engine, prompt: list[int]) -> None:
    async with session(engine, prompt) as s:
        ids, finish = await drain(engine, s)
        assert (len(ids), finish) == (TOKENS, "length")
        assert all(0 <= i < engine.info.vocab_size for i in ids)
        assert await drain(engine, s) == ([], "length")  # it stays finished, and open


async def repeats_itself(engine: Engine, prompt: list[int]) -> None:
    assert await answer(engine, prompt) == await answer(engine, prompt)


async def continues_a_log(engine: Engine, prompt: list[int]) -> None:
    whole = await answer(engine, prompt)
    async with session(engine, prompt, log=whole[:5]) as s:
        assert (await drain(engine, s))[0] == whole[5:]


async def stops_at_a_stop_token(engine: Engine, prompt: list[int]) -> None:
    whole = await answer(engine, prompt)
    async with session(engine, prompt, greedy(stop_tokens=(whole[3],))) as s:
        ids, finish = await drain(engine, s)
    assert finish == "stop"
    assert ids == whole[: len(ids)]
    assert len(ids) <= whole.index(whole[3]) + 1


async def accepts_its_own_tokens(engine: Engine, prompt: list[int]) -> None:
    whole = await answer(engine, prompt)
    async with session(engine, prompt) as s:
        verdict = await engine.verify(s, whole[:4])
        assert (verdict.accepted, verdict.ids, verdict.finish) == (4, whole[:5], None)
        assert (await engine.verify(s, [])).ids == whole[5:6]


async def corrects_a_wrong_draft(engine: Engine, prompt: list[int]) -> None:
    whole = await answer(engine, prompt)
    wrong = (whole[2] + 1) % engine.info.vocab_size
    async with session(engine, prompt) as s:
        verdict = await engine.verify(s, [*whole[:2], wrong, whole[3]])
        assert (verdict.accepted, verdict.ids) == (2, whole[:3])
        assert (await drain(engine, s))[0] == whole[3:]


async def finishes_in_verification(engine: Engine, prompt: list[int]) -> None:
    whole = await answer(engine, prompt)
    async with session(engine, prompt, log=whole[:-2]) as s:
        verdict = await engine.verify(s, [*whole[-2:], 1, 1])
        assert (verdict.ids, verdict.finish) == (whole[-2:], "length")


async def speculation_is_lossless(engine: Engine, prompt: list[int]) -> None:
    """The engine drafts for itself; now and then a draft is spoilt."""
    whole = await answer(engine, prompt)
    async with session(engine, prompt) as target, session(engine, prompt) as drafter:
        output: list[int] = []
        news: list[int] = []
        finish = None
        while finish is None:
            draft = (await engine.draft(drafter, len(output) - len(news), news, 4)).ids
            if len(output) % 2 and draft:
                draft[-1] = (draft[-1] + 1) % engine.info.vocab_size
            verdict = await engine.verify(target, draft)
            news, finish = verdict.ids, verdict.finish
            output += news
        assert output == whole


async def drafts_are_tentative(engine: Engine, prompt: list[int]) -> None:
    async with session(engine, prompt) as s:
        first = await engine.draft(s, 0, [], 4)
        assert 1 <= len(first.ids) <= 4
        again = await engine.draft(s, 0, [], 4)
        assert again.ids == first.ids


async def drafts_no_further_than_the_end(engine: Engine, prompt: list[int]) -> None:
    whole = await answer(engine, prompt)
    async with session(engine, prompt) as s:
        assert len((await engine.draft(s, 0, whole[:-1], 8)).ids) == 1


async def rolls_back(engine: Engine, prompt: list[int]) -> None:
    async with session(engine, prompt) as s:
        whole, _ = await drain(engine, s)
        await engine.extend(s, 3, [])
        assert (await drain(engine, s))[0] == whole[3:]
        await engine.extend(s, 2, whole[2:6])
        assert (await drain(engine, s))[0] == whole[6:]


async def generate_may_be_left_and_resumed(engine: Engine, prompt: list[int]) -> None:
    whole = await answer(engine, prompt)
    async with session(engine, prompt) as s:
        async with aclosing(engine.generate(s)) as stream:  # type: ignore[type-var]
            ids = (await anext(stream)).ids
        await engine.extend(s, 0, ids)
        assert ids + (await drain(engine, s))[0] == whole


async def cancel_ends_what_runs(engine: Engine, prompt: list[int]) -> None:
    longest = min(engine.info.context - len(prompt), 50_000)
    async with session(engine, prompt, greedy(longest)) as s:
        stream = engine.generate(s)
        await anext(stream)
        await engine.cancel(s)
        with pytest.raises(SessionCancelled):
            await exhaust(stream)
        with pytest.raises(UnknownSession):
            await engine.verify(s, [])
        await engine.cancel(s)  # unknown by now: ignored
        await engine.open(s, prompt, greedy())  # the id is free again


async def sessions_do_not_mix(engine: Engine, prompt: list[int]) -> None:
    other = [*prompt, prompt[0]]
    whole, others = await answer(engine, prompt), await answer(engine, other)
    async with session(engine, prompt) as s, session(engine, other) as t:
        first, second = engine.generate(s), engine.generate(t)
        ids, other_ids = (await anext(first)).ids, (await anext(second)).ids
        async for tokens in first:
            ids += tokens.ids
        async for tokens in second:
            other_ids += tokens.ids
    assert (ids, other_ids) == (whole, others)


async def refuses_what_makes_no_sense(engine: Engine, prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest):
        await engine.open(next(_ids), [], greedy())
    with pytest.raises(InvalidRequest):
        await engine.open(next(_ids), [engine.info.vocab_size], greedy())
    with pytest.raises(InvalidRequest, match="temperature"):
        await engine.open(next(_ids), prompt, Sampling(temperature=-1.0))
    with pytest.raises(ContextOverflow):
        await engine.open(next(_ids), prompt, greedy(engine.info.context))
    async with session(engine, prompt) as s:
        with pytest.raises(InvalidRequest):
            await engine.open(s, prompt, greedy())
        with pytest.raises(InvalidRequest):
            await engine.extend(s, 1, [])
        assert len((await drain(engine, s))[0]) == TOKENS  # unharmed


async def knows_its_sessions(engine: Engine, prompt: list[int]) -> None:
    missing = next(_ids)
    with pytest.raises(UnknownSession):
        await engine.verify(missing, [])
    with pytest.raises(UnknownSession):
        await engine.extend(missing, 0, [])
    with pytest.raises(UnknownSession):
        await engine.draft(missing, 0, [], 1)
    with pytest.raises(UnknownSession):
        await anext(engine.generate(missing))


async def counts(engine: Engine, prompt: list[int]) -> None:
    before = await engine.stats()
    async with session(engine, prompt) as s:
        await drain(engine, s)
        during = await engine.stats()
    after = await engine.stats()
    assert during.sessions == before.sessions + 1
    assert after.sessions == before.sessions
    assert after.opened == before.opened + 1
    assert after.tokens_generated == before.tokens_generated + TOKENS


CHECKS = [
    generates_to_the_length_asked_for,
    repeats_itself,
    continues_a_log,
    stops_at_a_stop_token,
    accepts_its_own_tokens,
    corrects_a_wrong_draft,
    finishes_in_verification,
    speculation_is_lossless,
    drafts_are_tentative,
    drafts_no_further_than_the_end,
    rolls_back,
    generate_may_be_left_and_resumed,
    cancel_ends_what_runs,
    sessions_do_not_mix,
    refuses_what_makes_no_sense,
    knows_its_sessions,
    counts,
]


async def close_stops_it(engine: Engine, prompt: list[int]) -> None:
    """Not among CHECKS: the engine is no use after it, and a remote one is not the caller's to stop."""
    async with session(engine, prompt) as s:
        await engine.close()
        with pytest.raises(EngineStopped):
            await engine.verify(s, [])
        with pytest.raises(EngineStopped):
            await engine.open(next(_ids), prompt, greedy())
