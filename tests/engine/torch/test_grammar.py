"""Grammars in the torch engine: an answer is the best, or a sample as likely, of what is allowed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from tandem.engine.base import Sampling
from tests.effort import slow_after
from tests.engine.torch.engines import Engines, collect, tokenizer
from tests.engine.torch.tiny_weights import EOS, VOCAB
from tests.engine_contract import BEFORE, LANGUAGE, begins, drain, ruled, session
from tests.model_contract import check_frequencies

TOKENIZER = tokenizer()


@pytest.fixture
async def engines(tmp_path: Path) -> AsyncIterator[Engines]:
    """The target, and a drafter that resembles it."""
    made = Engines(tmp_path)
    made.start(seed=1, text=TOKENIZER)
    made.start(seed=1, noise=0.08, text=TOKENIZER)
    yield made
    await made.close()


def allowed(output: tuple[int, ...]) -> list[int]:
    """Return the tokens that may follow, by the list of all texts."""
    text = TOKENIZER.shown_bytes(output)
    spelt = {token: TOKENIZER.shown_bytes([token]) for token in range(VOCAB)}
    return [
        token
        for token, more in spelt.items()
        if (more and begins(text + more)) or (token == EOS and text in LANGUAGE)
    ]


def likely(engines: Engines, output: tuple[int, ...]) -> dict[int, float]:
    """Return the log-probabilities of the tokens that may follow, all computed anew."""
    logits = engines.models[0].logits((*BEFORE, *output))
    ids = allowed(output)
    return dict(zip(ids, torch.log_softmax(logits[ids], 0).tolist(), strict=True))


async def test_greedy_is_the_best_of_what_is_allowed(engines: Engines) -> None:
    output: tuple[int, ...] = ()
    free = 0
    while not output or output[-1] != EOS:
        following = likely(engines, output)
        best = max(following, key=lambda token: following[token])
        free += best == int(engines.models[0].logits((*BEFORE, *output)).argmax())
        output = (*output, best)
    assert free < len(output), "the grammar changes something"
    async with session(engines.made[0], BEFORE, ruled()) as s:
        assert await collect(s) == (list(output), "stop")


async def test_logprobs_are_the_models_own(engines: Engines) -> None:
    """Beside a session without a grammar, whose penalties stay its own."""
    sampling = Sampling(max_tokens=12, logprobs=3, grammar=ruled().grammar)

    async def one() -> None:
        output: tuple[int, ...] = ()
        async with session(engines.made[0], BEFORE, sampling) as s:
            async for tokens in s.generate():
                for token, score in zip(tokens.ids, tokens.logprobs or (), strict=True):
                    logs = torch.log_softmax(engines.models[0].logits((*BEFORE, *output)), 0)
                    assert score.logprob == pytest.approx(float(logs[token]), abs=1e-4)
                    assert score.top[0][0] == int(logs.argmax())
                    output = (*output, token)
        assert TOKENIZER.shown_bytes(output) in LANGUAGE

    async def other() -> tuple[list[int], str | None]:
        penalised = Sampling(max_tokens=12, repetition_penalty=1.4)
        async with session(engines.made[0], BEFORE, penalised) as s:
            return await drain(s)

    _, found = await asyncio.gather(one(), other())
    assert found == engines.greedy(BEFORE, Sampling(max_tokens=12, repetition_penalty=1.4))


async def test_penalties_come_before_the_grammar(engines: Engines) -> None:
    sampling = Sampling(max_tokens=12, frequency_penalty=2.0, presence_penalty=2.0, grammar=ruled().grammar)
    output: tuple[int, ...] = ()
    while not output or output[-1] != EOS:
        logits = engines.models[0].logits((*BEFORE, *output))
        counts = Counter(output)
        less = {t: float(logits[t]) - 2.0 * counts[t] - 2.0 * (counts[t] > 0) for t in allowed(output)}
        output = (*output, max(less, key=lambda token: less[token]))
    async with session(engines.made[0], BEFORE, sampling) as s:
        assert (await collect(s))[0] == list(output)


@pytest.mark.parametrize("drafts", slow_after(2, ["none", "ruled", "free", "points"]))
async def test_samples_as_likely_as_the_model_says(engines: Engines, drafts: str) -> None:
    """The first two tokens, decoded, or verified after drafts that follow the grammar, do not, or come without their
    distribution."""
    target, drafter = engines.made
    expected = {}
    for first, p in likely(engines, ()).items():
        for second, q in likely(engines, (first,)).items():
            expected[first, second] = p + q

    async def two(seed: int) -> tuple[int, ...]:
        async with session(target, BEFORE, ruled(seed)) as s:
            if drafts == "none":
                return tuple((await collect(s))[0][:2])
            free = Sampling(max_tokens=12, temperature=1.0, seed=seed + 10**6)
            sampling = free if drafts == "free" else ruled(seed + 10**6)
            async with session(drafter, BEFORE, sampling) as d:
                proposed = await d.draft(0, [], 2)
            ids = (await s.verify(proposed.ids, None if drafts == "points" else proposed.probs)).ids
            return tuple([*ids, *(await s.verify([])).ids][:2])

    seen = Counter[tuple[int, ...]]()
    for start in range(0, 800, 16):
        seen.update(await asyncio.gather(*(two(start + i) for i in range(16))))
    assert seen.keys() <= expected.keys()
    check_frequencies(seen, expected)
