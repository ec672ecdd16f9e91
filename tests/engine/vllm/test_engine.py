"""The vLLM engine on the embedded target, on its own and beside the torch engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tandem.engine import family
from tandem.engine.base import Engine, EngineStopped, InvalidRequest, Sampling
from tandem.engine.tokenizer import Tokenizer
from tests import engine_contract, model_contract
from tests.engine_contract import exhaust, greedy

pytestmark = [
    pytest.mark.asyncio(loop_scope="package"),
    pytest.mark.vllm,
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    tokenizer = Tokenizer.load(family.path("target"))
    return tokenizer.render_chat([{"role": "user", "content": "Tell me about the town of Marworth."}])


@pytest.mark.parametrize("check", [*engine_contract.CHECKS, *model_contract.CHECKS], ids=lambda c: c.__name__)
async def test_contract(
    check: Callable[[Engine, list[int]], Awaitable[None]], engine: Engine, prompt: list[int]
) -> None:
    await check(engine, prompt)


@pytest.mark.parametrize("check", engine_contract.GRAMMATICAL, ids=lambda c: c.__name__)
async def test_contract_of_grammars(
    check: Callable[[Engine, Tokenizer], Awaitable[None]], engine: Engine
) -> None:
    await check(engine, Tokenizer.load(family.path("target")))


async def test_what_only_vllm_refuses(engine: Engine, prompt: list[int]) -> None:
    before = (await engine.stats()).sessions
    with pytest.raises(InvalidRequest, match="temperature"):
        await engine.open(prompt, Sampling(temperature=5.0))
    assert (await engine.stats()).sessions == before


async def test_what_is_under_way_when_the_engine_ends_hears_of_it(engine: Engine, prompt: list[int]) -> None:
    session = await engine.open(prompt, greedy(500))
    stream = session.generate()
    await anext(stream)
    waiting = asyncio.create_task(exhaust(stream))
    await asyncio.sleep(0)
    session.fail(EngineStopped("the engine was closed"))
    with pytest.raises(EngineStopped):
        await waiting
    engine.forget(session)
    session._give_up()
