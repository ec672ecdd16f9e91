"""vLLM without a speculator, as pools have it for which nothing drafts: the contract of all engines holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from tandem.engine import family
from tandem.engine.base import Engine
from tandem.engine.text.tokenizer import Tokenizer
from tests import engine_contract, model_contract
from tests.engine.vllm.conftest import load_engine

pytestmark = [
    pytest.mark.asyncio(loop_scope="package"),
    pytest.mark.vllm,
    pytest.mark.timeout(300),
]


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def plain_engine() -> AsyncIterator[Engine]:
    made = load_engine(window=0)
    yield made
    await made.close()


CHECKS = [
    *engine_contract.CHECKS,
    *model_contract.CHECKS,
    model_contract.drawn_drafts_stand_as_often_as_they_may,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
async def test_contract(check: Callable[[Engine, list[int]], Awaitable[None]], plain_engine: Engine) -> None:
    tokenizer = Tokenizer.load(family.path("target"))
    prompt = tokenizer.render_chat([{"role": "user", "content": "Tell me about the town of Marworth."}])
    await check(plain_engine, prompt)


@pytest.mark.parametrize("check", engine_contract.GRAMMATICAL, ids=lambda c: c.__name__)
async def test_contract_of_grammars(
    check: Callable[[Engine, Tokenizer], Awaitable[None]], plain_engine: Engine
) -> None:
    await check(plain_engine, Tokenizer.load(family.path("target")))
