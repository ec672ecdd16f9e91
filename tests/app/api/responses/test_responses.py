"""/v1/responses through OpenAI's client: texts, streams, conversations that are kept, and refusals."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai as sdk
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response

from tandem.deployments.access.kept.responses import KeptResponses, KeptSettings
from tandem.engine.base import EngineStopped
from tests.app.api.null_backend import TOKENIZER, NullBackend

SAYS = "Zürich 🗼 has three bridges."
TOKENS = len(SAYS.encode()) + 1  # and eos
EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]
HELLO = {"model": "null", "input": "Hello?"}


@pytest.fixture
async def backend() -> NullBackend:
    return NullBackend(says=SAYS)


def prompt(*messages: tuple[str, str]) -> tuple[int, ...]:
    return tuple(TOKENIZER.render_chat([{"role": role, "content": said} for role, said in messages]))


async def test_a_response(openai: AsyncOpenAI, backend: NullBackend) -> None:
    found = await openai.responses.create(
        model="null",
        input="Hello?",
        instructions="Be brief.",
        temperature=0.5,
        top_p=0.9,
        metadata={"a": "b"},
        user="me",
        extra_body={"seed": 5, "tandem": {"mode": "speculative"}},
    )
    assert (found.output_text, found.status, found.object) == (SAYS, "completed", "response")
    assert found.id.startswith("resp_")
    assert (found.model, found.metadata, found.instructions) == ("null", {"a": "b"}, "Be brief.")
    assert (found.temperature, found.top_p, found.store, found.error) == (0.5, 0.9, True, None)  # type: ignore[attr-defined]  # not in the client's types
    (job,) = backend.jobs
    assert job.prompt == prompt(("system", "Be brief."), ("user", "Hello?"))
    assert (job.sampling.temperature, job.sampling.top_p, job.sampling.seed, job.mode) == (
        0.5,
        0.9,
        5,
        "speculative",
    )
    usage = found.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (len(job.prompt), TOKENS)
    assert usage.total_tokens == len(job.prompt) + TOKENS
    assert sum(characters for _, characters in found.tandem["origins"]) == len(SAYS)  # type: ignore[attr-defined]  # not in the client's types
    Response.model_validate(found.model_dump(), strict=False)


async def test_a_stream_has_the_events_that_clients_parse(openai: AsyncOpenAI) -> None:
    stream = await openai.responses.create(**HELLO, stream=True)
    events = [event async for event in stream]
    kinds = [event.type for event in events]
    assert list(dict.fromkeys(kinds)) == EVENTS
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in deltas) == SAYS
    assert sum(n for event in deltas for _, n in event.tandem["origins"]) == len(SAYS)
    last = events[-1].response
    assert (last.output_text, last.status) == (SAYS, "completed")
    assert {event.item_id for event in deltas} == {last.output[0].id}
    assert last.id == events[0].response.id
    for event in events:
        type(event).model_validate(event.model_dump())


async def test_the_clients_stream_helper(openai: AsyncOpenAI) -> None:
    async with openai.responses.stream(**HELLO) as stream:
        async for _ in stream:
            pass
        found = await stream.get_final_response()
    assert found.output_text == SAYS


async def test_a_response_that_is_too_long_is_incomplete(openai: AsyncOpenAI) -> None:
    found = await openai.responses.create(**HELLO, max_output_tokens=3)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (found.output[0].status, found.max_output_tokens) == ("incomplete", 3)
    stream = await openai.responses.create(**HELLO, max_output_tokens=3, stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.usage.output_tokens == 3


async def test_log_probabilities(openai: AsyncOpenAI) -> None:
    asked: dict[str, Any] = {
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "max_output_tokens": 4,
    }
    found = await openai.responses.create(**HELLO, **asked)
    scores = found.output[0].content[0].logprobs
    assert [(s.token, s.logprob, len(s.top_logprobs)) for s in scores][:1] == [("Z", -0.25, 2)]
    assert len(scores) == 4
    stream = await openai.responses.create(**HELLO, **asked, stream=True)
    events = [event async for event in stream]
    streamed = [s for e in events if e.type == "response.output_text.delta" for s in e.logprobs]
    assert [s.token for s in streamed] == [s.token for s in scores]


async def test_messages_as_input(openai: AsyncOpenAI, backend: NullBackend) -> None:
    """Also outputs of earlier responses, as clients send them back."""
    first = await openai.responses.create(**HELLO)
    await openai.responses.create(
        model="null",
        input=[
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "Hel"}, {"type": "input_text", "text": "lo?"}],
            },
            *(item.model_dump() for item in first.output),
            {"type": "message", "role": "user", "content": "And then?"},
        ],
    )
    expected = prompt(("system", "Be brief."), ("user", "Hello?"), ("assistant", SAYS), ("user", "And then?"))
    assert backend.jobs[-1].prompt == expected


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_goes_on(openai: AsyncOpenAI, backend: NullBackend, stream: bool) -> None:
    """Without the instructions of the response before."""
    first = await openai.responses.create(**HELLO, instructions="Be brief.")
    second: Any = await openai.responses.create(
        model="null", input="And then?", previous_response_id=first.id, stream=stream
    )
    if stream:
        second = [event async for event in second][-1].response
    assert second.previous_response_id == first.id
    await openai.responses.create(model="null", input="Why?", previous_response_id=second.id)
    said = [
        ("user", "Hello?"),
        ("assistant", SAYS),
        ("user", "And then?"),
        ("assistant", SAYS),
        ("user", "Why?"),
    ]
    assert backend.jobs[-1].prompt == prompt(*said)
    await openai.responses.create(model="null", input="Or else?", previous_response_id=first.id)
    assert backend.jobs[-1].prompt == prompt(*said[:2], ("user", "Or else?"))


async def test_a_response_is_shown_and_forgotten(openai: AsyncOpenAI) -> None:
    made = await openai.responses.create(**HELLO)
    assert (await openai.responses.retrieve(made.id)) == made
    await openai.responses.delete(made.id)
    for again in (openai.responses.retrieve, openai.responses.delete):
        with pytest.raises(sdk.NotFoundError, match="or not any more"):
            await again(made.id)
    with pytest.raises(sdk.BadRequestError) as refused:
        await openai.responses.create(**HELLO, previous_response_id=made.id)
    assert (refused.value.code, refused.value.param) == (
        "previous_response_not_found",
        "previous_response_id",
    )


async def test_what_is_not_kept(openai: AsyncOpenAI, backend: NullBackend) -> None:
    """Neither on request, nor where there is no memory: the reply says so."""
    for store, kept_s in ((False, 9), (True, 0)):
        backend.responses = KeptResponses(KeptSettings(kept_s=kept_s))
        made = await openai.responses.create(**HELLO, store=store)
        assert made.store is False
        with pytest.raises(sdk.NotFoundError):
            await openai.responses.retrieve(made.id)


async def test_a_failure_within_a_stream(openai: AsyncOpenAI, backend: NullBackend) -> None:
    backend.fail_after = (5, EngineStopped("the engine is gone"))
    stream = await openai.responses.create(**HELLO, stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.message == "the engine is gone"
    with pytest.raises(sdk.InternalServerError):
        await openai.responses.create(**HELLO)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"input": None}, (400, "missing_required_parameter", "input")),
        ({"input": []}, (400, "invalid_value", "input")),
        ({"input": 5}, (400, "invalid_value", "input")),
        (
            {"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]},
            (400, "invalid_value", "input"),
        ),
        ({"input": [{"type": "computer_call"}]}, (400, "invalid_value", "input[0]")),
        (
            {"input": [{"type": "function_call", "call_id": "1", "name": "f"}]},
            (400, "missing_required_parameter", "input[0].arguments"),
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            (400, "invalid_value", "input[0].content"),
        ),
        ({"input": "x" * 600}, (400, "context_length_exceeded", "input")),
        ({"max_output_tokens": 512}, (400, "context_length_exceeded", "max_output_tokens")),
        ({"max_output_tokens": 0}, (400, "invalid_value", "max_output_tokens")),
        ({"include": ["reasoning.encrypted_content"]}, (400, "invalid_value", "include[0]")),
        ({"background": True}, (400, "unsupported_parameter", "background")),
        ({"conversation": "c"}, (400, "unsupported_parameter", "conversation")),
        ({"tools": [{"type": "web_search"}]}, (400, "invalid_value", "tools[0].type")),
        ({"tools": [{"type": "function", "name": "a b"}]}, (400, "invalid_value", "tools[0].name")),
        (
            {"tools": [{"type": "function", "name": "f", "defer_loading": True}]},
            (400, "unsupported_parameter", "tools[0].defer_loading"),
        ),
        ({"tool_choice": "required"}, (400, "invalid_value", None)),
        ({"tool_choice": "perhaps"}, (400, "invalid_value", "tool_choice.type")),
        ({"tool_choice": {"type": "function"}}, (400, "invalid_value", "tool_choice")),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
            (400, "invalid_value", "tool_choice.type"),
        ),
        ({"max_tool_calls": 1}, (400, "unsupported_parameter", "max_tool_calls")),
        ({"truncation": "auto"}, (400, "unsupported_parameter", "truncation")),
        (
            {"text": {"format": {"type": "json_schema", "name": "a"}}},
            (400, "missing_required_parameter", "text.format.schema"),
        ),
        ({"text": {"format": {"type": "xml"}}}, (400, "invalid_value", "text.format.type")),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": 5}}}},
            (400, "invalid_value", "text.format"),
        ),
        ({"text": {"verbosity": "low"}}, (400, "unsupported_parameter", "text.verbosity")),
        ({"metadata": {"a": "x" * 513}}, (400, "invalid_value", "metadata.a")),
        ({"tandem": {"mode": "warp"}}, (400, "unknown_mode", "tandem.mode")),
        ({"model": "gpt-9"}, (404, "model_not_found", "model")),
    ],
    ids=lambda case: json.dumps(case)[:50] if isinstance(case, dict) else "",
)
async def test_an_invalid_request(
    http: httpx.AsyncClient, extra: dict[str, Any], expected: tuple[object, ...]
) -> None:
    reply = await http.post("/v1/responses", json=HELLO | extra)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == expected


async def test_fields_that_ask_for_nothing(openai: AsyncOpenAI) -> None:
    found = await openai.responses.create(
        **HELLO,
        tools=[],
        tool_choice="auto",
        parallel_tool_calls=True,
        background=False,
        truncation="disabled",
        text={"format": {"type": "text"}},
        service_tier="auto",
        reasoning=None,
    )
    assert found.output_text == SAYS
