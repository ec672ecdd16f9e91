"""Functions through /v1/responses, with OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI, BadRequestError, pydantic_function_tool
from pydantic import BaseModel

from tests.app.api.family_backend import FamilyBackend
from tests.app.api.null_backend import TOKENIZER, NullBackend
from tests.app.api.test_tools import CALLS, CITIES, TOOL, asking, weather

FLAT: Any = {"type": "function", **TOOL["function"]}
ASKED: Any = {"model": "null", "input": "Does it rain in Paris?", "tools": [FLAT]}


@pytest.fixture
async def backend(tmp_path: Path) -> NullBackend:
    return NullBackend(says=CALLS, context=8192, ledger=tmp_path / "ledger.sqlite")


@pytest.fixture
async def client(backend: NullBackend) -> AsyncIterator[AsyncOpenAI]:
    async with asking(backend) as client:
        yield client


async def test_calls_are_items(client: AsyncOpenAI, backend: NullBackend) -> None:
    found = await client.responses.create(**ASKED)
    message, *calls = found.output
    assert (found.status, found.output_text, message.type) == ("completed", "I look.", "message")
    assert [(call.type, call.name, call.status) for call in calls] == [
        ("function_call", "weather", "completed")
    ] * 2
    assert [json.loads(call.arguments) for call in calls] == CITIES
    assert len({call.call_id for call in calls}) == len({call.id for call in calls}) == 2
    assert (found.tools[0].name, found.tool_choice, found.parallel_tool_calls) == ("weather", "auto", True)
    assert "Tells the weather of a city." in TOKENIZER.decode(backend.jobs[0].prompt)


@pytest.mark.parametrize("burst", [1, 7, 1000])
async def test_events_of_calls(client: AsyncOpenAI, backend: NullBackend, burst: int) -> None:
    """Tells the same, however many tokens come at once."""
    backend.burst = burst
    events: list[Any] = [event async for event in await client.responses.create(**ASKED, stream=True)]
    for event in events:
        type(event).model_validate(event.model_dump())
    assert [event.sequence_number for event in events] == list(range(len(events)))
    call = [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    text = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    assert unrepeated([event.type for event in events]) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        *(f"response.{each}" for each in text),
        "response.output_item.done",
        *call,
        *call,
        "response.completed",
    ]
    items = [event.item for event in events if event.type == "response.output_item.done"]
    assert items == events[-1].response.output
    for index, item in enumerate(items):
        parts = [e.delta for e in events if e.type.endswith(".delta") and e.output_index == index]
        assert "".join(parts) == (item.content[0].text if item.type == "message" else item.arguments)


@pytest.mark.parametrize("burst", [1, 7, 1000])
async def test_a_message_beside_calls_has_its_own_log_probabilities(
    client: AsyncOpenAI, backend: NullBackend, burst: int
) -> None:
    backend.burst = burst
    asked = ASKED | {"include": ["message.output_text.logprobs"]}
    events: list[Any] = [event async for event in await client.responses.create(**asked, stream=True)]
    streamed = [s.token for e in events if e.type == "response.output_text.delta" for s in e.logprobs]
    message = events[-1].response.output[0]
    assert "".join(streamed) == "".join(s.token for s in message.content[0].logprobs) == "I look."


def unrepeated(kinds: list[str]) -> list[str]:
    """Return the kinds, adjacent ones once."""
    return [kind for before, kind in zip([None, *kinds], kinds, strict=False) if kind != before]


async def test_the_clients_stream_helper_and_parser(client: AsyncOpenAI) -> None:
    tool = {"type": "function", **pydantic_function_tool(weather)["function"]}
    async with client.responses.stream(**ASKED | {"tools": [tool]}) as stream:
        seen = [event async for event in stream]
        streamed = await stream.get_final_response()
    whole = await client.responses.parse(**ASKED | {"tools": [tool]})
    for found in (streamed, whole):
        assert [json.loads(call.arguments) for call in found.output[1:]] == CITIES
    snapshots = [e.snapshot for e in seen if e.type == "response.function_call_arguments.delta"]
    assert json.loads(snapshots[-1]) == CITIES[-1]


async def test_outputs_of_functions_come_back(client: AsyncOpenAI, backend: NullBackend) -> None:
    """No matter whether the conversation is kept, or the client sends all of it, the model reads the same."""
    first = await client.responses.create(**ASKED)
    outputs: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"{n}: dry"}
        for n, call in enumerate(first.output[1:])
    ]
    asked = {name: value for name, value in ASKED.items() if name != "input"}
    kept = await client.responses.create(**asked, previous_response_id=first.id, input=outputs)
    question: Any = {"role": "user", "content": ASKED["input"]}
    await client.responses.create(**asked, input=[question, *first.output, *outputs])
    assert backend.jobs[1].prompt == backend.jobs[2].prompt
    prompt = TOKENIZER.decode(backend.jobs[1].prompt)
    assert prompt.count('{"name": "weather", "arguments"') == 2
    assert prompt.index("I look.") < prompt.index("0: dry") < prompt.index("1: dry")

    items = [item async for item in client.responses.input_items.list(kept.id, order="asc", limit=2)]
    assert [item.type for item in items] == ["message"] * 2 + ["function_call"] * 2 + [
        "function_call_output"
    ] * 2
    assert [item.id for item in items[1:4]] == [item.id for item in first.output]
    latest = await client.responses.input_items.list(kept.id)
    assert [item.id for item in latest.data] == [item.id for item in items[::-1]]
    with pytest.raises(BadRequestError, match="no input item"):
        await client.responses.input_items.list(kept.id, after="msg_0")


async def test_an_output_needs_its_call(client: AsyncOpenAI) -> None:
    output: Any = [{"type": "function_call_output", "call_id": "call_0", "output": "dry"}]
    with pytest.raises(BadRequestError, match="no such call"):
        await client.responses.create(**ASKED | {"input": output})


async def test_an_unfinished_call(client: AsyncOpenAI) -> None:
    found = await client.responses.create(**ASKED, max_output_tokens=len(CALLS) - 15)
    assert found.status == "incomplete"
    assert [item.status for item in found.output] == ["completed", "completed", "incomplete"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
async def test_a_call_is_had_of_any_model(tmp_path: Path, choice: Any) -> None:
    backend = FamilyBackend(tmp_path / "ledger.sqlite")
    async with asking(backend) as client:
        found = await client.responses.create(
            **ASKED,
            tool_choice=choice,
            parallel_tool_calls=False,
            max_output_tokens=60,
            extra_body={"seed": 1},
        )
    await backend.model.close()
    (call,) = found.output
    assert (call.type, json.loads(call.arguments) in CITIES) == ("function_call", True)
    assert found.to_dict()["tool_choice"] == choice


async def test_thoughts_are_an_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TOKENIZER, "chat_template", "… <think> …")
    backend = NullBackend(says="<think>\nRain?\n</think>\n\nIt rains.", ledger=tmp_path / "ledger.sqlite")
    async with asking(backend) as client:
        found = await client.responses.create(model="null", input="Well?")
        thought = found.output[0]
        assert (thought.type, thought.content[0].text, found.output_text) == (
            "reasoning",
            "Rain?",
            "It rains.",
        )
        assert found.usage is not None
        assert found.usage.output_tokens_details.reasoning_tokens == len("<think>\nRain?\n</think>")
        again = await client.responses.create(model="null", input="Well?", stream=True)
        events: list[Any] = [event async for event in again]
        for event in events:
            type(event).model_validate(event.model_dump())
        kinds = [event.type for event in events]
        assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
        deltas = [event for event in events if event.type == "response.reasoning_text.delta"]
        assert "".join(event.delta for event in deltas) == "Rain?"
        cut = await client.responses.create(model="null", input="Well?", max_output_tokens=10)
        assert [(item.type, item.status) for item in cut.output] == [("reasoning", "incomplete")]
        await client.responses.create(model="null", input=[*found.output, {"role": "user", "content": "So?"}])


class City(BaseModel):
    name: Literal["Paris", "Rome"]


async def test_a_form_is_parsed(tmp_path: Path) -> None:
    backend = FamilyBackend(tmp_path / "ledger.sqlite")
    async with asking(backend) as client:
        found = await client.responses.parse(
            model="null", input="A city?", text_format=City, max_output_tokens=60, extra_body={"seed": 1}
        )
    await backend.model.close()
    assert isinstance(found.output_parsed, City)
