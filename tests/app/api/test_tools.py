"""Tools through the API, with OpenAI's own client."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, pydantic_function_tool
from pydantic import BaseModel

from tandem.engine.base import Grammar
from tests.app.api.family_backend import FOLDER, FamilyBackend
from tests.app.api.null_backend import TOKENIZER, NullBackend
from tests.app.api.one_api import api_of, openai_at
from tests.effort import slow_after
from tests.servers import served

QUESTION: Any = [{"role": "user", "content": "Does it rain in Paris?"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALLS = (
    'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)
CITIES = [{"city": "Paris"}, {"city": "Rome"}]


class weather(BaseModel):
    """Tells the weather of a city."""

    city: str


@asynccontextmanager
async def asking(backend: NullBackend) -> AsyncIterator[AsyncOpenAI]:
    await backend.treasury.open()
    async with (
        served(api_of(backend)) as address,
        openai_at(address) as client,
    ):
        yield client
    await backend.treasury.close()


@pytest.fixture
async def backend(tmp_path: Path) -> NullBackend:
    return NullBackend(says=CALLS, context=8192, ledger=tmp_path / "ledger.sqlite")


@pytest.fixture
async def client(backend: NullBackend) -> AsyncIterator[AsyncOpenAI]:
    async with asking(backend) as client:
        yield client


@pytest.fixture
async def model(tmp_path: Path) -> AsyncIterator[AsyncOpenAI]:
    """A client of a model that knows no tools."""
    backend = FamilyBackend(tmp_path / "ledger.sqlite")
    async with asking(backend) as client:
        yield client
    await backend.model.close()


async def test_calls_of_a_whole_answer(client: AsyncOpenAI, backend: NullBackend) -> None:
    answer = await client.chat.completions.create(model="null", messages=QUESTION, tools=[TOOL])
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    calls: list[Any] = choice.message.tool_calls or []
    assert [json.loads(call.function.arguments) for call in calls] == CITIES
    assert {call.function.name for call in calls} == {"weather"}
    assert len({call.id for call in calls}) == 2
    assert "Tells the weather of a city." in TOKENIZER.decode(backend.jobs[0].prompt)


async def test_calls_of_a_stream(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="null", messages=QUESTION, tools=[TOOL], stream=True, stream_options={"include_usage": True}
    )
    content, finish, calls = "", None, dict[int, list[str]]()
    async for chunk in stream:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                assert call.function is not None
                if call.id:
                    calls[call.index] = [call.id, call.function.name or "", ""]
                calls[call.index][2] += call.function.arguments or ""
    assert (content, finish) == ("I look.", "tool_calls")
    assert [json.loads(arguments) for _, _, arguments in calls.values()] == CITIES


async def test_the_clients_own_parser(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(
        model="null", messages=QUESTION, tools=[pydantic_function_tool(weather)]
    )
    calls: list[Any] = answer.choices[0].message.tool_calls or []
    assert [call.function.parsed_arguments for call in calls] == [weather(city="Paris"), weather(city="Rome")]


async def test_one_call_at_a_time(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="null", messages=QUESTION, tools=[TOOL], parallel_tool_calls=False
    )
    calls: list[Any] = answer.choices[0].message.tool_calls or []
    assert [json.loads(call.function.arguments) for call in calls] == CITIES[:1]


async def test_no_call_is_read_where_none_is_wanted(client: AsyncOpenAI, backend: NullBackend) -> None:
    answer = await client.chat.completions.create(
        model="null", messages=QUESTION, tools=[TOOL], tool_choice="none"
    )
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (CALLS, "stop")
    assert answer.choices[0].message.tool_calls is None
    assert "Tells the weather" not in TOKENIZER.decode(backend.jobs[0].prompt)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_is_had_of_any_model(model: AsyncOpenAI, choice: Any, stream: bool) -> None:
    asked: Any = {
        "model": "null",
        "messages": QUESTION,
        "tools": [TOOL],
        "tool_choice": choice,
        "max_tokens": 60,
    }
    asked |= {"seed": 1, "parallel_tool_calls": False}
    if stream:
        async with model.chat.completions.stream(**asked) as events:
            answer = await events.get_final_completion()
    else:
        answer = await model.chat.completions.create(**asked)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or []
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) in CITIES


@pytest.fixture(
    params=slow_after(1, ["[TOOL_CALLS] [CALL_ID] [ARGS]", "[TOOL_CALLS]", "[TOOL_CALLS] [ARGS]"])
)
async def mistral(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncOpenAI]:
    """A client of that model with Mistral's special tokens in place of some of its own."""
    folder = tmp_path / "mistral"
    shutil.copytree(FOLDER, folder)
    definition = (folder / "tokenizer.json").read_text()
    for name, mark in (("<|s|>", "[TOOL_CALLS]"), ("<|x|>", "[ARGS]"), ("<|e|>", "[CALL_ID]")):
        assert name in definition
        definition = definition.replace(name, mark)
    (folder / "tokenizer.json").write_text(definition)
    with (folder / "chat_template.jinja").open("a") as template:
        template.write(f"{{# {request.param} #}}")
    backend = FamilyBackend(tmp_path / "ledger.sqlite", folder)
    async with asking(backend) as client:
        yield client
    await backend.model.close()


async def test_a_call_of_special_tokens_is_had_too(mistral: AsyncOpenAI) -> None:
    asked: Any = {"model": "null", "messages": QUESTION, "tools": [TOOL], "max_tokens": 60, "seed": 2}
    asked |= {"tool_choice": "required", "parallel_tool_calls": False}
    answer = await mistral.chat.completions.create(**asked)
    async with mistral.chat.completions.stream(**asked) as events:
        streamed = await events.get_final_completion()
    for choice in (answer.choices[0], streamed.choices[0]):
        assert (choice.finish_reason, choice.message.content or "") == ("tool_calls", "")
        (call,) = choice.message.tool_calls or []
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments) in CITIES
        assert len(call.id) == 9


async def test_an_answer_of_a_form_beside_calls_of_special_tokens(mistral: AsyncOpenAI) -> None:
    """Either is had, by chance: of a model that knows neither."""
    form = {"type": "object", "properties": {"rains": {"type": "boolean"}}, "required": ["rains"]}
    said = set()
    for seed in range(40):
        answer = await mistral.chat.completions.create(
            model="null",
            messages=QUESTION,
            tools=[TOOL],
            parallel_tool_calls=False,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "rain", "schema": form | {"additionalProperties": False}},
            },
            max_tokens=60,
            seed=seed,
            temperature=1.5,
        )
        (choice,) = answer.choices
        said.add(choice.finish_reason)
        calls: list[Any] = choice.message.tool_calls or []
        found = calls[0].function.arguments if calls else choice.message.content or ""
        assert json.loads(found) in (CITIES if calls else [{"rains": True}, {"rains": False}])
        if len(said) == 2:
            break
    assert said == {"tool_calls", "stop"}


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"tools": [TOOL, TOOL]}, None),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sun"}}}, None),
        ({"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice.type"),
        ({"tool_choice": "required"}, None),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [TOOL], "extra_body": {"structured_outputs": {"regex": "a"}}}, None),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}
                ],
                "tool_choice": "required",
            },
            "tools",
        ),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(
    client: AsyncOpenAI, extra: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(BadRequestError) as refused:
        await client.chat.completions.create(model="null", messages=QUESTION, **extra)
    assert refused.value.param == param


async def test_thoughts_are_split_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TOKENIZER, "chat_template", "… <think> …")
    backend = NullBackend(says="<think>\nRain?\n</think>\n\nIt rains.", ledger=tmp_path / "ledger.sqlite")
    async with asking(backend) as client:
        answer = await client.chat.completions.create(model="null", messages=QUESTION)
        message: Any = answer.choices[0].message
        assert (message.content, message.reasoning_content) == ("It rains.", "Rain?")
        assert answer.usage is not None
        assert answer.usage.completion_tokens_details is not None
        assert answer.usage.completion_tokens_details.reasoning_tokens == len("<think>\nRain?\n</think>")
        thought, content = "", ""
        async for chunk in await client.chat.completions.create(model="null", messages=QUESTION, stream=True):
            delta: Any = chunk.choices[0].delta
            thought += getattr(delta, "reasoning_content", None) or ""
            content += delta.content or ""
        assert (content, thought) == ("It rains.", "Rain?")


@pytest.mark.parametrize("begun", [True, False])
async def test_a_form_comes_behind_thoughts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    monkeypatch.setattr(TOKENIZER, "chat_template", "… <think> …")
    monkeypatch.setattr(
        TOKENIZER, "render_chat", lambda *_: TOKENIZER.encode("Rain?<think>\n" if begun else "Rain?")
    )
    says = "" if begun else "<think>\n"
    backend = NullBackend(says=says + 'Rain?\n</think>\n\n{"a": 1}', ledger=tmp_path / "ledger.sqlite")
    async with asking(backend) as client:
        answer = await client.chat.completions.create(
            model="null", messages=QUESTION, response_format={"type": "json_object"}
        )
    message: Any = answer.choices[0].message
    assert (message.content, message.reasoning_content) == ('{"a": 1}', "Rain?")
    grammar = backend.jobs[0].sampling.grammar
    assert grammar is not None
    assert (grammar.kind, grammar.end, grammar.begin) == (
        "json_object",
        "</think>",
        "" if begun else "<think>",
    )


async def test_a_form_comes_at_once_where_thoughts_are_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TOKENIZER, "chat_template", "… <think> …")
    monkeypatch.setattr(TOKENIZER, "render_chat", lambda *_: TOKENIZER.encode("Rain?<think>\n\n</think>\n\n"))
    backend = NullBackend(says='{"a": 1}', ledger=tmp_path / "ledger.sqlite")
    async with asking(backend) as client:
        answer = await client.chat.completions.create(
            model="null", messages=QUESTION, response_format={"type": "json_object"}
        )
    assert answer.choices[0].message.content == '{"a": 1}'
    assert backend.jobs[0].sampling.grammar == Grammar("json_object")


async def test_an_effort_is_for_templates_that_read_it(
    client: AsyncOpenAI, backend: NullBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    chat: Any = {"model": "null", "messages": QUESTION, "reasoning_effort": "low"}
    response: Any = {"model": "null", "input": "Rain?", "reasoning": {"effort": "low"}}
    for create, asked, param in (
        (client.chat.completions.create, chat, "reasoning_effort"),
        (client.responses.create, response, "reasoning.effort"),
    ):
        with pytest.raises(BadRequestError, match="reads no effort") as refused:
            await create(**asked)
        assert refused.value.param == param
    monkeypatch.setattr(TOKENIZER, "chat_template", "… reasoning_effort …")
    monkeypatch.setattr(TOKENIZER, "render_chat", lambda _, given: seen.append(given) or [1])
    await client.chat.completions.create(**chat)
    await client.responses.create(**response)
    assert seen == [{"reasoning_effort": "low"}] * 2
