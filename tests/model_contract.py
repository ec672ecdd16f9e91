"""Contract of every engine with a model beyond `tests.engine_contract`: its tokens and their probabilities.

A test module runs `CHECKS` against its engines. They need a model whose next tokens are uncertain, an engine with fewer
places than SESSIONS and a policy for them, and a KV cache that cannot hold PARKED times LONG tokens.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import takewhile
from random import Random
from typing import TypeVar

import msgspec
import numpy as np
import pytest

from tandem.engine.base import DraftProbs, Engine, Sampling, TokenLogprob
from tandem.policies.scheduling.outstanding import Outstanding
from tests.engine_contract import drain, greedy, session

K = TypeVar("K", bound=Hashable)

SESSIONS = 16
PARKED, LONG = 12, 220
CLEAR = 0.02
"""Lead of a token's log-probability over the next best one's that no engine's rounding undoes."""
SAMPLES = 320
UNLIKELY = 1e-5
"""Probability with which a sound engine fails a check of its distribution; seeds are fixed."""


async def generates_what_it_verifies(engine: Engine, prompt: list[int]) -> None:
    """Likelihoods too."""
    sampling = Sampling(max_tokens=11, ignore_eos=True, logprobs=3)
    whole, scores = await _scored(engine, prompt, sampling)
    async with session(engine, prompt, sampling) as s:
        first = await s.verify([*whole[:4], (whole[4] + 1) % engine.info.vocab_size])
        rest = await s.verify(whole[5:10])
    assert (first.accepted, rest.accepted) == (4, 5)
    assert first.ids + rest.ids == whole
    verified = [*(first.logprobs or ()), *(rest.logprobs or ())]
    for token, generated, checked in zip(whole, scores, verified, strict=True):
        assert generated.logprob == pytest.approx(checked.logprob, abs=1e-4)
        assert len(generated.top) == len(checked.top) == 3
        assert generated.top[0] == (token, generated.logprob)


async def penalties_count_the_whole_output(engine: Engine, prompt: list[int]) -> None:
    """Count the output that a session was opened with as well."""
    sampling = Sampling(
        max_tokens=24, ignore_eos=True, logprobs=20, presence_penalty=1.0, frequency_penalty=0.6
    )
    whole, scores = await _scored(engine, prompt, sampling)
    free, _ = await _scored(engine, prompt, Sampling(max_tokens=24, ignore_eos=True, logprobs=0))
    assert whole != free
    for position, (token, score) in enumerate(zip(whole, scores, strict=True)):
        counts = Counter(whole[:position])
        adjusted = {
            other: logprob - 1.0 * (counts[other] > 0) - 0.6 * counts[other] for other, logprob in score.top
        }
        assert adjusted[token] == pytest.approx(max(adjusted.values()), abs=1e-4)
    for cut in (3, 15):
        async with session(engine, prompt, sampling, log=whole[:cut]) as s:
            assert (await drain(s))[0] == whole[cut:]


async def samples_as_likely_as_the_model_says(engine: Engine, prompt: list[int]) -> None:
    """The second token, generated and verified: a draft that is right at times, and one whose context is."""
    prompt, likely, after = await _uncertain(engine, prompt)

    async def second(seed: int, drafts: Sequence[int]) -> int:
        sampling = Sampling(max_tokens=2, ignore_eos=True, temperature=1.0, seed=seed)
        async with session(engine, prompt, sampling, log=()) as s:
            await s.extend(0, [likely])
            if drafts:
                return (await s.verify(drafts)).ids[0]
            return (await drain(s))[0][0]

    for drafts in ([], [after.top[2][0]]):
        seen = Counter[int]()
        for start in range(0, SAMPLES, SESSIONS):
            seen.update(await asyncio.gather(*(second(start + i, drafts) for i in range(SESSIONS))))
        check_frequencies(seen, dict(after.top))


async def verifies_as_likely_as_the_model_says(engine: Engine, prompt: list[int]) -> None:
    """Check the distribution after an accepted draft in the same verdict."""
    prompt, likely, after = await _uncertain(engine, prompt)

    async def verified(seed: int, second: int) -> list[int]:
        sampling = Sampling(max_tokens=3, ignore_eos=True, temperature=1.0, seed=seed)
        async with session(engine, prompt, sampling) as s:
            return (await s.verify([likely, second])).ids

    for drafted in (after.top[0][0], after.top[1][0]):
        seen = Counter[int]()
        for start in range(0, SAMPLES, SESSIONS):
            for ids in await asyncio.gather(*(verified(start + i, drafted) for i in range(SESSIONS))):
                if ids[0] == likely:
                    seen[ids[1]] += 1
        check_frequencies(seen, dict(after.top))


async def drawn_drafts_stand_as_often_as_they_may(engine: Engine, prompt: list[int]) -> None:
    """A draft d drawn from q stands with min(1, p(d) / q(d)), and what replaces it has what is left of p. As a point
    mass, where the engine takes no q, it stands with p(d). Sessions of one step differ in what they say of drafts."""
    prompt, likely, after = await _uncertain(engine, prompt)
    p = {token: math.exp(logprob) for token, logprob in after.top}
    likeliest = [token for token, _ in after.top[:3]]
    q = dict(zip(likeliest, (0.1, 0.6, 0.3), strict=True))
    random = Random(5)

    async def verified(seed: int) -> tuple[bool, int] | None:
        drafted = random.choices(likeliest, [*q.values()])[0]
        drafts = [likely, drafted, likeliest[0]][: 2 + seed % 2]
        ids = np.array([[likely] * 3, likeliest, likeliest], np.int32)
        mass = np.array([[1, 0, 0], [*q.values()], [1, 0, 0]], np.float32)
        stated = DraftProbs.of(ids, mass).first(len(drafts)) if seed % 4 else None
        sampling = Sampling(max_tokens=5, ignore_eos=True, temperature=1.0, seed=seed)
        async with session(engine, prompt, sampling) as s:
            verdict = await s.verify(drafts, stated)
        return (verdict.accepted > 1, verdict.ids[1]) if stated and verdict.accepted else None

    seen = Counter[tuple[bool, int]]()
    for start in range(0, 2 * SAMPLES, SESSIONS):
        found = await asyncio.gather(*(verified(start + i) for i in range(SESSIONS)))
        seen.update(each for each in found if each is not None)
    stands = {t: min(p[t], q[t]) if engine.info.takes_probs else p[t] * q[t] for t in q}
    pairs = [((True, t), stands[t]) for t in q] + [((False, t), p[t] - stands.get(t, 0.0)) for t in p]
    check_frequencies(seen, {pair: math.log(often) for pair, often in pairs if often > 0.0})


async def says_whether_drafts_have_probabilities(engine: Engine, prompt: list[int]) -> None:
    async with session(engine, prompt, Sampling(max_tokens=4, temperature=1.0, ignore_eos=True)) as s:
        assert ((await s.draft(0, [], 2)).probs is not None) == engine.info.draft_probs


async def whoever_gives_way_says_the_same(engine: Engine, prompt: list[int]) -> None:
    """More sessions than places, with readers who together are slower than any engine: were they not, nobody would be
    displaced for newcomers."""
    sampling = Sampling(max_tokens=120, ignore_eos=True, reader_rate=0.5)
    async with session(engine, prompt, sampling) as s:
        whole, _ = await drain(s)
    before = (await engine.stats()).preempted

    async def one(log: int) -> list[int]:
        async with session(engine, prompt, sampling, log=whole[:log]) as s:
            return whole[:log] + (await drain(s))[0]

    assert await asyncio.gather(*map(one, range(SESSIONS))) == [whole] * SESSIONS
    assert (await engine.stats()).preempted > before


async def tells_of_its_work(engine: Engine, prompt: list[int]) -> None:
    """Autoscaling sees the sessions' demand, waiting sessions, and finished work."""
    before = await engine.stats()
    sampling = Sampling(max_tokens=120, ignore_eos=True, reader_rate=10.0)
    sessions = [await engine.open([20 + i, *prompt], sampling) for i in range(SESSIONS)]
    streams = [asyncio.ensure_future(drain(s)) for s in sessions]
    while not (busy := await engine.stats()).outstanding.awaited:
        assert not all(stream.done() for stream in streams), "there are fewer places than sessions"
        await asyncio.sleep(0)
    assert busy.sessions == SESSIONS
    assert busy.outstanding.reading == 10.0 * SESSIONS
    assert busy.outstanding.backlog >= len(prompt), "somebody waits, with all of its prompt"
    assert 0 < busy.base_s < 10
    assert 0 < busy.token_s < 10
    await asyncio.gather(*streams)
    for s in sessions:
        await s.cancel()
    while (after := await engine.stats()).outstanding != Outstanding():  # noqa: ASYNC110 (engines have no such event)
        await asyncio.sleep(0)  # until the engine has seen them go
    assert after.block_size * after.blocks_total >= engine.info.context
    assert after.tokens_generated - before.tokens_generated == 120 * SESSIONS
    prefilled = after.tokens_prefilled - before.tokens_prefilled
    assert prefilled >= SESSIONS, "the first tokens of the prompts differ, and so does all that follows"


async def parked_sessions_give_way(engine: Engine, prompt: list[int]) -> None:
    """Their memory is needed by others, and they go on where they were."""
    vocab_size = engine.info.vocab_size
    sampling = greedy(8)
    prompts, expected = list[list[int]](), list[list[int]]()
    for i in takewhile(lambda _: len(prompts) < PARKED, range(4 * PARKED)):
        text = [*prompt, *(20 + (7 * i + 13 * j) % (vocab_size - 20) for j in range(LONG))]
        whole, scores = await _scored(engine, text, msgspec.structs.replace(sampling, logprobs=2))
        if min(map(_lead, scores)) > CLEAR:
            prompts.append(text)
            expected.append(whole)
    assert len(prompts) == PARKED
    sessions = [await engine.open(each, sampling) for each in prompts]
    try:
        for whole, s in zip(expected, sessions, strict=True):
            assert (await s.verify(whole[:2])).ids == whole[:3]
        for whole, s in zip(expected, sessions, strict=True):
            assert (await s.verify([whole[3], (whole[4] + 1) % vocab_size])).ids == whole[3:5]
        for whole, s in zip(expected, sessions, strict=True):
            assert (await drain(s))[0] == whole[5:]
    finally:
        for s in sessions:
            await s.cancel()


async def scores_a_given_text(engine: Engine, prompt: list[int], rounding: float = 1e-4) -> None:
    """A forced session does, where the model would say something else; and goes on from there.

    rounding: most that a log-probability depends on the positions computed in one step.
    """
    given = [(7 * i) % (engine.info.vocab_size - 20) + 20 for i in range(6)]
    sampling = Sampling(max_tokens=9, ignore_eos=True, logprobs=2, forced=True)
    scores: list[TokenLogprob] = []
    async with session(engine, prompt, sampling) as s:
        for at in (0, 4):
            part = given[at : at + 4]
            verdict = await s.verify(part)
            assert (verdict.accepted, verdict.ids[:-1]) == (len(part), part)
            scores += (verdict.logprobs or [])[: len(part)]
            await s.extend(at + len(part), [])
        rest = (await drain(s))[0]
    async with session(engine, prompt, greedy(9), log=given) as s:
        assert (await drain(s))[0] == rest
    for position, score in enumerate(scores):
        context = [*prompt, *given[:position]]
        (best, *_), (own, *_) = await _scored(engine, context, Sampling(max_tokens=1, logprobs=2))
        assert score.top[0][0] == best
        assert [logprob for _, logprob in score.top] == pytest.approx([p for _, p in own.top], abs=rounding)
        assert score.logprob <= score.top[0][1]


async def chooses_among_the_likeliest(engine: Engine, prompt: list[int]) -> None:
    """Use top_k, in generation and verification."""
    prompt, likely, after = await _uncertain(engine, prompt)
    allowed = {token for token, _ in after.top[:2]}
    seen = set()
    for seed in range(12):
        sampling = Sampling(max_tokens=3, ignore_eos=True, temperature=2.0, top_k=2, seed=seed)
        async with (
            session(engine, prompt, sampling, log=[likely]) as s,
            session(engine, prompt, sampling) as t,
        ):
            ids, (_, *following) = (await drain(s))[0], (await t.verify([likely, after.top[0][0]])).ids
            seen |= {ids[0]}
            assert ids[0] in allowed
            if following:
                assert following[0] in allowed
    assert seen == allowed


async def stops_at_a_stop_string(engine: Engine, prompt: list[int]) -> None:
    """Wherever it comes from, and again after a step back."""
    async with session(engine, prompt, greedy(30)) as s:
        whole, _ = await drain(s)
    sampling = Sampling(max_tokens=30, ignore_eos=True, stop=("never said", ". "))
    async with session(engine, prompt, sampling) as s:
        ids, finish = await drain(s)
        assert finish == "stop"
        assert ids == whole[: len(ids)]
        assert len(ids) < len(whole)
        assert await drain(s) == ([], "stop")
        await s.extend(1, [])
        verdict = await s.verify(whole[1:5])
        assert verdict.ids == whole[1:6]
        assert await drain(s) == (ids[6:], "stop")


async def follows_biases_and_least_probabilities(engine: Engine, prompt: list[int]) -> None:
    """Use logit_bias greedily, and a min_p that leaves the likeliest token alone; in generation and verification."""
    async with session(engine, prompt) as s:
        whole, _ = await drain(s)
    at = next(i for i in range(1, len(whole)) if whole[i] not in whole[:i])
    banned = whole[at]
    sampling = Sampling(max_tokens=len(whole), ignore_eos=True, logit_bias=((banned, -100.0),))
    async with session(engine, prompt, sampling) as s, session(engine, prompt, sampling) as t:
        ids, _ = await drain(s)
        assert ids[:at] == whole[:at]
        assert banned not in ids
        verdict = await t.verify([*ids[:at], banned])
        assert (verdict.accepted, verdict.ids) == (at, ids[: at + 1])
        verdict = await t.verify(ids[at + 1 : at + 3])
        assert (verdict.accepted, verdict.ids) == (2, ids[at + 1 : at + 4])
    wrong = (whole[1] + 1) % engine.info.vocab_size
    for seed in range(4):
        sampling = Sampling(max_tokens=len(whole), ignore_eos=True, temperature=2.0, min_p=1.0, seed=seed)
        async with session(engine, prompt, sampling) as s, session(engine, prompt, sampling) as t:
            assert (await drain(s))[0] == whole
            assert (await t.verify([whole[0], wrong])).ids == whole[:2]
            assert (await t.verify(whole[2:5])).ids == whole[2:6]


async def ends_after_its_least_tokens(engine: Engine, prompt: list[int]) -> None:
    """Neither a stop token nor a stop string before, whether it generates or verifies."""
    async with session(engine, prompt, greedy(30)) as s:
        whole, _ = await drain(s)
    sampling = Sampling(max_tokens=30, ignore_eos=True, stop_tokens=tuple(whole), min_tokens=4)
    async with session(engine, prompt, sampling) as s, session(engine, prompt, sampling) as t:
        ids, finish = await drain(s)
        assert len(ids) >= 4
        assert set(ids[:4]).isdisjoint(whole)
        assert (finish == "stop") == (ids[-1] in whole)
        verdict = await t.verify([*ids[:3], whole[3]])
        assert (verdict.accepted, verdict.ids) == (3, ids[:4])
        assert await drain(t) == (ids[4:], finish)
    sampling = Sampling(max_tokens=30, ignore_eos=True, stop=(" ", "e", "t"), min_tokens=9)
    async with session(engine, prompt, sampling) as s:
        ids, finish = await drain(s)
        assert (ids, finish) == (whole[: len(ids)], "stop")
        assert len(ids) > 9


CHECKS = [
    generates_what_it_verifies,
    penalties_count_the_whole_output,
    samples_as_likely_as_the_model_says,
    verifies_as_likely_as_the_model_says,
    says_whether_drafts_have_probabilities,
    whoever_gives_way_says_the_same,
    tells_of_its_work,
    parked_sessions_give_way,
    scores_a_given_text,
    chooses_among_the_likeliest,
    stops_at_a_stop_string,
    ends_after_its_least_tokens,
    follows_biases_and_least_probabilities,
]


async def _scored(
    engine: Engine, prompt: list[int], sampling: Sampling
) -> tuple[list[int], list[TokenLogprob]]:
    ids: list[int] = []
    scores: list[TokenLogprob] = []
    async with session(engine, prompt, sampling) as s:
        async for tokens in s.generate():
            ids += tokens.ids
            scores += tokens.logprobs or []
    return ids, scores


def _lead(score: TokenLogprob) -> float:
    """Return by how much the best token is likelier than the next one, as a logarithm."""
    (_, best), (_, second), *_ = score.top
    return best - second


async def _uncertain(engine: Engine, prompt: list[int]) -> tuple[list[int], int, TokenLogprob]:
    """A longer prompt, a token that is likely to follow it, and what may follow that, which is least certain of all."""
    whole, scores = await _scored(engine, prompt, Sampling(max_tokens=60, ignore_eos=True, logprobs=20))
    certain = [
        scores[i].logprob if scores[i - 1].logprob > math.log(0.5) else 0.0 for i in range(1, len(whole))
    ]
    at = certain.index(min(certain))
    return [*prompt, *whole[:at]], whole[at], scores[at + 1]


def check_frequencies(seen: Counter[K], logprobs: dict[K, float]) -> None:
    """A χ² test of counts against probabilities; what is expected less than five times counts together."""
    total = seen.total()
    assert total > SAMPLES / 10
    expected = {token: total * math.exp(logprob) for token, logprob in logprobs.items()}
    cells = [(seen[token], often) for token, often in expected.items() if often >= 5]
    assert len(cells) > 1, "a model that is so sure shows nothing"
    cells.append((total - sum(n for n, _ in cells), total - sum(often for _, often in cells)))
    statistic = sum((n - often) ** 2 / max(often, 1e-9) for n, often in cells)
    freedom = len(cells) - 1
    # Wilson and Hilferty's normal approximation of χ²
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert 0.5 * math.erfc(z / math.sqrt(2)) > UNLIKELY, (seen, expected)
