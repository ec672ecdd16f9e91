"""vLLM's own proposer as the drafter, beside devices that draft: what is said stays what the model says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tandem.engine import family
from tandem.engine.base import Engine
from tandem.engine.tokenizer import Tokenizer
from tests import engine_contract, model_contract
from tests.engine_contract import drain, greedy, session

pytestmark = [
    pytest.mark.asyncio(loop_scope="package"),
    pytest.mark.vllm,
    pytest.mark.timeout(300),
]
CHECKS = [
    engine_contract.speculation_is_lossless,
    engine_contract.corrects_a_wrong_draft,
    engine_contract.rolls_back,
    engine_contract.generate_may_be_left_and_resumed,
    model_contract.generates_what_it_verifies,
    model_contract.verifies_as_likely_as_the_model_says,
    model_contract.whoever_gives_way_says_the_same,
]


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    tokenizer = Tokenizer.load(family.path("target"))
    return tokenizer.render_chat([{"role": "user", "content": "Tell me about the town of Marworth."}])


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
async def test_contract(
    check: Callable[[Engine, list[int]], Awaitable[None]], speculating_engine: Engine, prompt: list[int]
) -> None:
    await check(speculating_engine, prompt)


async def test_what_was_said_before_takes_fewer_steps(
    engine: Engine, speculating_engine: Engine, prompt: list[int]
) -> None:
    async with session(engine, prompt, greedy(80)) as s:
        said, _ = await drain(s)
    again = [*prompt, *said, *prompt]
    took, accepted, answers = [], [], []
    for each in (engine, speculating_engine):
        before = await each.stats()
        async with session(each, again, greedy(60)) as s:
            answers.append(await drain(s))
        after = await each.stats()
        took.append(after.steps - before.steps)
        accepted.append(after.tokens_accepted - before.tokens_accepted)
        assert after.tokens_verified - before.tokens_verified >= accepted[-1]
    assert answers[0] == answers[1]
    assert took[1] < 0.8 * took[0], "some of its drafts were accepted"
    assert accepted[0] == 0
    assert accepted[1] == pytest.approx(took[0] - took[1], abs=2), "each spares a step"
