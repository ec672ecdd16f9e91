"""Third-party clients, and requests as they send them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from tandem.app.api.completions.sse import PADDED
from tests.app.api.null_backend import TOKENIZER, NullBackend, events

SAYS = "Zürich has three bridges, and a lake."
HELLO: dict[str, Any] = {"model": "null", "messages": [{"role": "user", "content": "Hello?"}]}


@pytest.fixture
async def backend() -> NullBackend:
    return NullBackend(says=SAYS)


async def streamed(http: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a streamed chat."""
    reply = await http.post("/v1/chat/completions", json=body | {"stream": True})
    assert reply.status_code == 200, reply.text
    return events(reply.text)


# -- libraries ------------------------------------------------------------------------------------------


@pytest.fixture
def langchain(address: str) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{address}/v1", api_key="none", model="null", max_retries=0, timeout=20)


async def test_langchain(langchain: ChatOpenAI) -> None:
    answer = await langchain.ainvoke("Hello?")
    assert answer.content == SAYS
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == len(SAYS.encode()) + 1
    parts = [part.content async for part in langchain.astream("Hello?")]
    assert "".join(map(str, parts)) == SAYS


async def test_langchain_with_tool_calls_in_the_conversation(
    langchain: ChatOpenAI, backend: NullBackend
) -> None:
    calls = [{"name": "weather", "args": {"town": "Marworth"}, "id": "call-1"}]
    asked = [
        HumanMessage("How is the weather?"),
        AIMessage("", tool_calls=calls),
        ToolMessage("It rains.", tool_call_id="call-1"),
    ]
    assert (await langchain.ainvoke(asked)).content == SAYS
    assert "It rains." in TOKENIZER.decode(backend.jobs[-1].prompt)


# -- requests ---------------------------------------------------------------------------------------------


async def test_a_request_of_guidellm(http: httpx.AsyncClient) -> None:
    assert (await http.get("/health")).status_code == 200
    assert (await http.get("/v1/models")).json()["data"][0]["id"] == "null"
    asked = {
        "model": "null",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello?"}]}],
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_tokens": 7,
        "max_completion_tokens": 7,
        "stop": None,
        "ignore_eos": True,
    }
    found = await streamed(http, asked)
    counted = [event["usage"]["completion_tokens"] for event in found]
    assert counted == sorted(counted)
    assert counted[-1] == 7
    assert {event["usage"]["prompt_tokens"] for event in found} == {found[-1]["usage"]["prompt_tokens"]}
    assert found[-1]["choices"] == []


async def test_usage_comes_once_by_default(http: httpx.AsyncClient) -> None:
    *chunks, last = await streamed(http, HELLO | {"stream_options": {"include_usage": True}})
    assert {event["usage"] for event in chunks} == {None}
    assert last["usage"]["completion_tokens"] == len(SAYS.encode()) + 1


async def test_padded_events_do_not_reveal_the_length_of_their_text(http: httpx.AsyncClient) -> None:
    asked = HELLO | {"stream": True, "stream_options": {"include_obfuscation": True}}
    reply = await http.post("/v1/chat/completions", json=asked)
    found, lines = events(reply.text), reply.text.split("\n\n")[:-2]
    assert "".join(event["choices"][0]["delta"]["content"] for event in found) == SAYS
    assert all("obfuscation" in event for event in found)
    assert {(len(line.encode()) + 2) % PADDED for line in lines} == {0}
    assert "obfuscation" not in (await streamed(http, HELLO))[0]


@pytest.mark.parametrize(
    "extra",
    [
        {"max_completion_tokens": 5},
        {"metadata": {"a": "b"}, "store": False, "service_tier": "auto", "user": "me"},
        {"stream_options": None},
    ],
)
async def test_fields_of_the_official_client(http: httpx.AsyncClient, extra: dict[str, Any]) -> None:
    reply = await http.post("/v1/chat/completions", json=HELLO | extra)
    assert reply.status_code == 200, reply.text


# -- people ---------------------------------------------------------------------------------------------


async def test_the_documentation_loads_nothing_from_elsewhere(http: httpx.AsyncClient) -> None:
    page = (await http.get("/docs")).text
    assert "http" not in page.replace("http://www.w3.org", "")
    for link in links(page):
        assert (await http.get(link)).status_code == 200, link


def links(page: str) -> Iterator[str]:
    yield from re.findall(r"""(?:href|src)=["']([^"']+)["']""", page)
