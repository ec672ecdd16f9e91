"""Clients that nobody here wrote, and the requests that they send, unmodified."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from tandem.app.api.completions.sse import PADDED
from tests.app.api.null_backend import TOKENIZER, NullBackend

SAYS = "Zürich has three bridges, and a lake."
HELLO: dict[str, Any] = {"model": "null", "messages": [{"role": "user", "content": "Hello?"}]}


@pytest.fixture
async def backend() -> NullBackend:
    return NullBackend(says=SAYS)


async def events(http: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a stream."""
    async with http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as reply:
        assert reply.status_code == 200, await reply.aread()
        lines = [line.removeprefix("data: ") async for line in reply.aiter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


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


async def test_langchain_with_a_conversation_that_had_tools(
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


# -- shapes ---------------------------------------------------------------------------------------------


async def test_what_guidellm_sends(http: httpx.AsyncClient) -> None:
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
    found = await events(http, asked)
    counted = [event["usage"]["completion_tokens"] for event in found]
    assert counted == sorted(counted)
    assert counted[-1] == 7
    assert {event["usage"]["prompt_tokens"] for event in found} == {found[-1]["usage"]["prompt_tokens"]}
    assert found[-1]["choices"] == []


async def test_usage_comes_once_where_nobody_asks_for_more(http: httpx.AsyncClient) -> None:
    *chunks, last = await events(http, HELLO | {"stream_options": {"include_usage": True}})
    assert {event["usage"] for event in chunks} == {None}
    assert last["usage"]["completion_tokens"] == len(SAYS.encode()) + 1


async def test_padded_events_do_not_tell_the_length_of_their_text(http: httpx.AsyncClient) -> None:
    asked = HELLO | {"stream": True, "stream_options": {"include_obfuscation": True}}
    reply = await http.post("/v1/chat/completions", json=asked)
    lines = [line for line in reply.text.split("\n\n") if line.startswith("data: {")]
    found = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(event["choices"][0]["delta"]["content"] for event in found) == SAYS
    assert all("obfuscation" in event for event in found)
    assert {(len(line.encode()) + 2) % PADDED for line in lines} == {0}
    assert "obfuscation" not in (await events(http, HELLO))[0]


@pytest.mark.parametrize(
    "extra",
    [
        {"max_completion_tokens": 5},
        {"metadata": {"a": "b"}, "store": True, "service_tier": "auto", "user": "me"},
        {"stream_options": None},
    ],
)
async def test_fields_of_the_official_client(http: httpx.AsyncClient, extra: dict[str, Any]) -> None:
    reply = await http.post("/v1/chat/completions", json=HELLO | extra)
    assert reply.status_code == 200, reply.text


# -- people ---------------------------------------------------------------------------------------------


async def test_the_front_page_links_what_there_is(http: httpx.AsyncClient) -> None:
    page = await http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "<b>null</b>" in page.text
    for link in links(page.text):
        assert (await http.get(f"/{link}")).status_code == 200, link


async def test_the_documentation_needs_nobody_else(http: httpx.AsyncClient) -> None:
    page = (await http.get("/docs")).text
    assert "http" not in page.replace("http://www.w3.org", "")
    for link in links(page):
        assert (await http.get(link)).status_code == 200, link


def links(page: str) -> Iterator[str]:
    yield from re.findall(r"""(?:href|src)=["']([^"']+)["']""", page)
