"""Many requests at once, each with a form or a tool that allows one answer: none gets another's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.app.api.clients.modes_backend import ModesBackend, serving
from tests.app.api.clients.pairs import NO_REAL_PAIR, Pair, real_pair, scripted_pair
from tests.app.api.clients.parts import missing
from tests.app.api.clients.run_programs import MODES
from tests.effort import tried

REQUESTS = tried(16, 50)


def schema(number: int) -> dict[str, Any]:
    """Return a schema whose only instances name the number."""
    fields = {"town": {"enum": [f"Town {number}"]}, "size": {"enum": ["small", "large"]}}
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


async def ask(client: AsyncOpenAI, number: int) -> None:
    """Ask for a form or for a call, and check the answer."""
    asked: dict[str, Any] = {"name": "town", "strict": True}
    options: dict[str, Any]
    if number % 2:
        options = {
            "response_format": {"type": "json_schema", "json_schema": asked | {"schema": schema(number)}}
        }
    else:
        function = asked | {"parameters": schema(number)}
        options = {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        }
    said = await client.chat.completions.create(
        model="null",
        messages=[{"role": "user", "content": "Tell me about a town."}],
        max_tokens=200,
        temperature=1.0,
        seed=number,
        **options,
    )
    message = said.choices[0].message
    if number % 2:
        found = message.content
    else:
        assert message.tool_calls
        (call,) = message.tool_calls
        found = call.function.arguments
    answer = json.loads(found or "")
    assert answer["town"] == f"Town {number}"
    assert answer.keys() == {"town", "size"}
    assert answer["size"] in ("small", "large")


async def ask_all(mode: str, pair: Pair, ledger: Path) -> None:
    """Ask all at once, and check that the mode took its part in each."""
    backend = ModesBackend(mode, *pair, ledger)
    async with (
        serving(backend) as address,
        AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=500) as client,
    ):
        await asyncio.gather(*(ask(client, number) for number in range(REQUESTS)))
    assert len(backend.answers) == REQUESTS
    if mode != "sketch":  # which divides neither
        assert [without for stats in backend.answers if (without := missing(mode, stats))] == []


@pytest.fixture
async def scripted() -> AsyncIterator[Pair]:
    pair = scripted_pair()
    yield pair
    await pair.close()


@pytest.fixture
async def real() -> AsyncIterator[Pair]:
    pair = real_pair()
    yield pair
    await pair.close()


@pytest.mark.parametrize(
    "mode", [mode if mode == "speculative" else pytest.param(mode, marks=pytest.mark.slow) for mode in MODES]
)
async def test_answers_at_once_have_their_own_forms(mode: str, scripted: Pair, tmp_path: Path) -> None:
    await ask_all(mode, scripted, tmp_path / "ledger")


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(NO_REAL_PAIR), reason=NO_REAL_PAIR)
@pytest.mark.parametrize("mode", ["cloud", "speculative"])
async def test_a_real_models_answers_at_once_have_their_own_forms(
    mode: str, real: Pair, tmp_path: Path
) -> None:
    await ask_all(mode, real, tmp_path / "ledger")
