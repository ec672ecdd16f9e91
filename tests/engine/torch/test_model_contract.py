"""The torch engine on the embedded target keeps what every engine with a model owes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tandem.engine import family
from tandem.engine.base import Engine
from tandem.engine.config import EngineConfig, SchedulingChoice
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.engine import load
from tests.engine.torch.place import DEVICE
from tests.model_contract import CHECKS


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    config = EngineConfig(kv_blocks=126, max_sessions=8, scheduling=SchedulingChoice(name="buffer_aware"))
    # in 16 bits, a GPU's default, tokens that are about as likely change places with the size of a step
    made = load(family.path("target"), config, device=str(DEVICE), dtype="float32", threads=1)
    yield made
    await made.close()


LONG = {
    "verifies_as_likely_as_the_model_says",
    "samples_as_likely_as_the_model_says",
    "whoever_gives_way_says_the_same",
    "parked_sessions_give_way",
}
"""Checks that small models have in `make test`, too, in `test_engine` and `test_verification`."""


@pytest.mark.parametrize(
    "check",
    [pytest.param(c, marks=pytest.mark.slow if c.__name__ in LONG else ()) for c in CHECKS],
    ids=lambda check: check.__name__,
)
async def test_model_contract(check: Callable[[Engine, list[int]], Awaitable[None]], engine: Engine) -> None:
    question = [{"role": "user", "content": "Tell me about the town of Marworth."}]
    await check(engine, Tokenizer.load(family.path("target")).render_chat(question))
