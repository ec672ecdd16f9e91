"""Drafts of vLLM's own proposer and of our lookup, beside clients' drafts: an answer stays what the model says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tandem.engine import family
from tandem.engine.base import Engine, EngineStats
from tandem.engine.text.tokenizer import Tokenizer
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
    model_contract.drawn_drafts_stand_as_often_as_they_may,
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
    engine: Engine, speculating_engine: Engine, prompt: list[int], request: pytest.FixtureRequest
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
        accepted.append(_accepted(after) - _accepted(before))
    assert answers[0] == answers[1]
    # Lookups wait until measured step times say that they pay.
    assert took[1] < (1.0 if "lookup" in request.node.name else 0.8) * took[0], "drafts were accepted"
    assert accepted[0] == 0
    assert accepted[1] == pytest.approx(took[0] - took[1], abs=2), "each spares a step"


def _accepted(stats: EngineStats) -> int:
    return stats.tokens_accepted + stats.tokens_found


async def test_rounds_beside_a_clients_drafts(
    engine: Engine, speculating_engine: Engine, prompt: list[int], request: pytest.FixtureRequest
) -> None:
    """A client whose drafts are always wrong still gets several tokens a round where the engine looks up drafts."""
    async with session(engine, prompt, greedy(80)) as s:
        said, _ = await drain(s)
    again = [*prompt, *said, *prompt]
    async with session(engine, again, greedy(60)) as s:
        whole, _ = await drain(s)
    async with session(speculating_engine, again, greedy(60)) as s:
        ids, rounds, finish = list[int](), 0, None
        while finish is None:
            verdict = await s.verify([5, 5])
            ids, rounds, finish = ids + verdict.ids, rounds + 1, verdict.finish
    assert ids == whole
    assert (rounds < len(whole)) == ("lookup" in request.node.name)
