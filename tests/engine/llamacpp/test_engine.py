"""The engine over llama.cpp keeps what every engine owes, and says what the torch engine says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from tandem.engine import family
from tandem.engine.base import Engine, Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.text.tokenizer import Tokenizer
from tests import engine_contract, model_contract
from tests.engine.llamacpp.conftest import start
from tests.engine_contract import drain, session

pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(300)]

ROUNDING = 4e-3
"""Error of a log-probability: llama.cpp multiplies one position by another kernel than several."""
QUESTIONS = [
    "Tell me about the town of Marworth.",
    "Who founded Marworth?",
    "Compare Marworth and Ellisburg.",
]


def prompts() -> list[list[int]]:
    tokenizer = Tokenizer.load(family.path("target"))
    return [tokenizer.render_chat([{"role": "user", "content": question}]) for question in QUESTIONS]


@pytest.mark.parametrize("check", [*engine_contract.CHECKS, *model_contract.CHECKS], ids=lambda c: c.__name__)
async def test_contract(check: Callable[[Engine, list[int]], Awaitable[None]], engine: Engine) -> None:
    if check is model_contract.scores_a_given_text:
        check = partial(model_contract.scores_a_given_text, rounding=ROUNDING)
    await check(engine, prompts()[0])


@pytest.mark.parametrize("check", engine_contract.GRAMMATICAL, ids=lambda c: c.__name__)
async def test_contract_of_grammars(
    check: Callable[[Engine, Tokenizer], Awaitable[None]], engine: Engine
) -> None:
    await check(engine, Tokenizer.load(family.path("target")))


async def test_many_at_once_say_what_the_torch_engine_says(target_gguf: Path) -> None:
    """Prompts of common and of other beginnings, over a KV cache that does not hold all sessions."""
    from tandem.engine.torch.engine import load

    made = start(target_gguf, kv_blocks=40, block_size=8, max_sessions=8)
    torch_engine = load(family.path("target"), EngineConfig(), threads=1)
    sampling = Sampling(max_tokens=60, logprobs=0)

    async def said(engine: Engine, prompt: list[int]) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        scores: list[float] = []
        async with session(engine, prompt, sampling) as s:
            async for tokens in s.generate():
                ids += tokens.ids
                scores += [score.logprob for score in tokens.logprobs or ()]
        return ids, scores

    asked = [prompt[:-1] + prompt[-1:] * (1 + i % 2) for i, prompt in enumerate(prompts() * 4)]
    expected = [await said(torch_engine, prompt) for prompt in asked]
    for (ids, scores), (wanted, likely) in zip(
        await asyncio.gather(*(said(made, prompt) for prompt in asked)), expected, strict=True
    ):
        assert ids == wanted
        assert scores == pytest.approx(likely, abs=2e-2)  # llama.cpp rounds on its way
    stats = await made.stats()
    assert stats.preempted > 0
    assert stats.tokens_from_prefix > 0
    await made.close()
    await torch_engine.close()


async def test_a_drafter_here_and_a_target_in_torch_stay_lossless(target_gguf: Path) -> None:
    from tandem.engine.torch.engine import load

    drafter = start(target_gguf)
    target = load(family.path("small"), EngineConfig(), threads=1)
    prompt, sampling = prompts()[0], Sampling(max_tokens=48)
    async with session(target, prompt, sampling) as s:
        alone, _ = await drain(s)
    output: list[int] = []
    accepted = 0
    async with session(target, prompt, sampling) as verifying, session(drafter, prompt, sampling) as drafting:
        finish, new, position = None, list[int](), 0
        while finish is None:
            drafts = await drafting.draft(position, new, 4)
            verdict = await verifying.verify(drafts.ids, drafts.probs)
            position, new, finish = len(output), verdict.ids, verdict.finish
            output += verdict.ids
            accepted += verdict.accepted
    assert output == alone
    assert accepted > 0
    await drafter.close()
    await target.close()
