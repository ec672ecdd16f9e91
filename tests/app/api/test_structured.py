"""Structured output through the API, with OpenAI's own client, on a model that knows no JSON."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic import BaseModel, Field, SecretStr

from tests.app.api.family_backend import FamilyBackend
from tests.app.api.one_api import api_of, openai_at
from tests.servers import served

MESSAGES: Any = [{"role": "user", "content": "Tell me about the town of Marworth."}]


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


class Town(BaseModel):
    name: Annotated[str, Field(max_length=12)]
    size: Size
    bridges: Annotated[int, Field(ge=0, le=99)]
    twins: Annotated[list[Size], Field(max_length=2)]


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[FamilyBackend]:
    backend = FamilyBackend(tmp_path / "ledger.sqlite")
    await backend.treasury.open()
    yield backend
    await backend.treasury.close()
    await backend.model.close()


@pytest.fixture
async def client(backend: FamilyBackend) -> AsyncIterator[AsyncOpenAI]:
    async with (
        served(api_of(backend)) as address,
        openai_at(address) as client,
    ):
        yield client


async def test_a_response_is_parsed(client: AsyncOpenAI) -> None:
    asked: Any = {"model": "null", "input": MESSAGES, "text_format": Town, "max_output_tokens": 300}
    found = await client.responses.parse(**asked, temperature=0)
    assert isinstance(found.output_parsed, Town)
    assert found.text.format.name == "Town"
    async with client.responses.stream(**asked, temperature=0) as stream:
        async for _ in stream:
            pass
        assert (await stream.get_final_response()).output_parsed == found.output_parsed


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
async def test_langchain(backend: FamilyBackend, method: Literal["json_schema", "function_calling"]) -> None:
    async with served(api_of(backend)) as address:
        llm = ChatOpenAI(
            base_url=f"{address}/v1",
            api_key=SecretStr("none"),
            model="null",
            seed=1,
            max_completion_tokens=200,
            max_retries=0,
            timeout=60,
        )
        asked = llm.with_structured_output(Town, method=method)
        assert isinstance(await asked.ainvoke("Tell me about the town of Marworth."), Town)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_parse_returns_the_model(client: AsyncOpenAI, temperature: float) -> None:
    answer = await client.chat.completions.parse(
        model="null",
        messages=MESSAGES,
        response_format=Town,
        temperature=temperature,
        seed=1,
        max_tokens=200,
    )
    assert isinstance(answer.choices[0].message.parsed, Town)
    assert answer.choices[0].finish_reason == "stop"


async def test_a_stream_is_parsed_too(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model="null", messages=MESSAGES, response_format=Town, max_tokens=200
    ) as stream:
        answer = await stream.get_final_completion()
    assert isinstance(answer.choices[0].message.parsed, Town)


async def test_every_choice_has_the_form(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="null",
        messages=MESSAGES,
        n=4,
        temperature=1.5,
        seed=3,
        max_tokens=100,
        extra_body={"structured_outputs": {"regex": "[A-Z][a-z]{2,8}, [0-9]{1,3}"}},
    )
    said = [choice.message.content or "" for choice in answer.choices]
    assert all(re.fullmatch("[A-Z][a-z]{2,8}, [0-9]{1,3}", text) for text in said)
    assert len(set(said)) > 1


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"choice": ["yes", "no", "perhaps: 東京"]}, "yes|no|perhaps: 東京"),
        ({"grammar": 'root ::= "<" [ab] ">"'}, "<[ab]>"),
        ({"grammar": 'start: "<" /[ab]/ ">"'}, "<[ab]>"),
        ({"json": {"enum": [1, "two"]}}, '1|"two"'),
    ],
)
async def test_forms_of_vllm_for_completions(
    client: AsyncOpenAI, form: dict[str, Any], expected: str
) -> None:
    for seed in range(3):
        answer = await client.completions.create(
            model="null", prompt="The town", seed=seed, max_tokens=60, extra_body={"structured_outputs": form}
        )
        assert re.fullmatch(expected, answer.choices[0].text)
        assert answer.choices[0].finish_reason == "stop"


async def test_any_object(client: AsyncOpenAI) -> None:
    """Allow for the beginning of one, where the model finds no end."""
    answer = await client.chat.completions.create(
        model="null", messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=100, seed=5
    )
    text, finish = answer.choices[0].message.content or "", answer.choices[0].finish_reason
    assert text.startswith("{")
    if finish == "stop":
        assert isinstance(json.loads(text), dict)
