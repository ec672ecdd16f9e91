"""Resumable streams go on at another replica of the API: every event once, whatever has become of the first one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from openai import AsyncOpenAI, AsyncStream
from starlette.types import Send

from tandem.app.api.http import kept_streams
from tandem.deployments.access.kept.streams import Outcome, StreamCopies, StreamCopy, StreamNews
from tandem.deployments.request.assignment import Unavailable
from tandem.engine.base import NoCapacity
from tests.app.api.http.test_kept_streams import CHAT, PATH, SAYS, broken_off, events, said
from tests.app.api.null_backend import NullBackend, times
from tests.app.api.one_api import api_of, openai_at
from tests.servers import served


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[NullBackend]:
    backend = NullBackend(says=SAYS, ledger=tmp_path / "ledger.sqlite")
    await backend.treasury.open()
    yield backend
    await backend.treasury.close()


@asynccontextmanager
async def another(backend: NullBackend) -> AsyncIterator[httpx.AsyncClient]:
    """Start another replica of the API."""
    async with (
        served(api_of(backend, replica=1)) as address,
        httpx.AsyncClient(base_url=address, timeout=20, trust_env=False) as http,
    ):
        yield http


async def rest(http: httpx.AsyncClient, last: str) -> list[tuple[str, str]]:
    reply = await http.post(PATH, headers={"Last-Event-ID": last})
    assert reply.status_code == 200, reply.text
    return events(reply.text)


@pytest.mark.parametrize(
    "asked", [{}, {"stop": ["bridges,"]}, {"logprobs": True}], ids=["plain", "stop", "scored"]
)
async def test_it_goes_on_where_it_is_asked_for(
    address: str, backend: NullBackend, asked: dict[str, Any]
) -> None:
    async with another(backend) as http:
        whole = said(events((await http.post(PATH, json=CHAT | asked)).text))
        before = await broken_off(address, backend, after=5, **asked)
        backend.hold_after = None
        after = await rest(http, before[-1][0])
    name, _, _ = before[0][0].partition(":")
    assert [id for id, _ in before + after] == [f"{name}:{n}" for n in range(len(before + after))]
    assert said(before + after) == whole
    assert after[-1][1] == "[DONE]"
    chunks = [json.loads(data) for _, data in before + after[:-1]]
    assert {chunk["id"] for chunk in chunks} == {name}
    assert len({chunk["created"] for chunk in chunks}) == 1
    assert [n for n, chunk in enumerate(chunks) if "role" in chunk["choices"][0]["delta"]] == [0]
    tokens = chunks[-1]["tandem"]["stats"]["tokens"]
    assert tokens["output"] == sum(tokens["by_origin"].values())
    assert len(backend.jobs[-1].log) >= 5


async def test_the_first_replica_ends_what_has_moved(address: str, backend: NullBackend) -> None:
    before = await broken_off(address, backend, after=5)
    async with another(backend) as http:
        backend.hold_after = 9
        async with http.stream("POST", PATH, headers={"Last-Event-ID": before[-1][0]}):
            await times(1, backend.held)  # at the second replica
            backend.go.set()  # the first one goes on, and hears whose it is
            await times(1, backend.closed)
    async with httpx.AsyncClient(base_url=address, timeout=20, trust_env=False) as http:
        assert said(before + await rest(http, before[-1][0])) == SAYS, "it may come back"


class Distant(StreamCopies):
    """Copies that take a while to come."""

    async def claim(self, account: str, id: str, owner: str) -> StreamCopy | None:
        await asyncio.sleep(0.05)
        return await super().claim(account, id, owner)


async def test_clients_that_come_at_once_follow_one_answer(address: str, backend: NullBackend) -> None:
    backend.streams = Distant(60.0)
    before = await broken_off(address, backend, after=5)
    backend.hold_after = None
    async with another(backend) as http:
        found = await asyncio.gather(*(rest(http, before[-1][0]) for _ in range(5)))
    assert [said(before + each) for each in found] == [SAYS] * 5
    assert len(backend.jobs) == 2, "the second one, at another replica"


async def test_a_whole_one_is_sent_from_its_copy(http: httpx.AsyncClient, backend: NullBackend) -> None:
    found = events((await http.post(PATH, json=CHAT)).text)
    async with another(backend) as other:
        assert await rest(other, found[0][0]) == found[1:]
        reply = await other.post(PATH, headers={"Last-Event-ID": f"{found[0][0].partition(':')[0]}:9999"})
        assert reply.status_code == 400
        name = found[0][0].partition(":")[0]
        assert (await other.delete(f"{PATH}/{name}")).json()["deleted"] is True
        assert (await other.delete(f"{PATH}/{name}")).status_code == 404
    assert len(backend.jobs) == 1


async def test_of_several_choices_each_goes_on(http: httpx.AsyncClient, backend: NullBackend) -> None:
    backend.hold_after = 5
    before: list[tuple[str, str]] = []
    async with http.stream("POST", PATH, json=CHAT | {"n": 2}) as reply:
        text = ""
        async for part in reply.aiter_text():
            text += part
            before = events(text)
            if by_choice(before) == [SAYS.encode()[:5].decode()] * 2:
                break
    backend.hold_after = None
    async with another(backend) as other:
        assert by_choice(before + await rest(other, before[-1][0])) == [SAYS] * 2


def by_choice(found: Sequence[tuple[str, str]]) -> list[str]:
    texts = ["", ""]
    for choice in (c for _, data in found if data != "[DONE]" for c in json.loads(data)["choices"]):
        texts[choice["index"]] += choice["delta"]["content"]
    return texts


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
async def test_openais_client_takes_no_sign_of_life_for_an_event(
    responses: bool, openai: AsyncOpenAI, backend: NullBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_piece, alive = kept_streams._send_piece, asyncio.Semaphore(0)

    async def counted(send: Send, piece: bytes) -> None:
        await send_piece(send, piece)
        if piece == kept_streams._KEEP_ALIVE:
            alive.release()

    monkeypatch.setattr(kept_streams, "_send_piece", counted)
    monkeypatch.setattr(kept_streams, "KEEP_ALIVE_S", 0.01)
    backend.hold_after = 5
    resumable = {"tandem": {"resumable": True}}
    stream: AsyncStream[Any]
    if responses:
        stream = await openai.responses.create(
            model="null", input="Hello?", stream=True, extra_body=resumable
        )
    else:
        messages: Any = CHAT["messages"]
        stream = await openai.chat.completions.create(
            model="null", messages=messages, stream=True, extra_body=resumable
        )
    got = [await anext(stream)]
    await times(3, alive)
    backend.go.set()
    got += [event async for event in stream]
    if responses:
        assert got[-1].response.output_text == SAYS
    else:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in got if chunk.choices) == SAYS


async def test_responses_as_openai_resumes_them(openai: AsyncOpenAI, backend: NullBackend) -> None:
    backend.hold_after = 5
    stream = await openai.responses.create(
        model="null", input="Hello?", stream=True, extra_body={"tandem": {"resumable": True}}
    )
    before = [await anext(stream) for _ in range(6)]
    await stream.close()
    backend.hold_after = None
    id, last = before[0].response.id, before[-1].sequence_number
    async with served(api_of(backend, replica=1)) as address, openai_at(address) as other:
        following = await other.responses.retrieve(id, stream=True, starting_after=last)
        rest = [event async for event in following]
    assert [event.sequence_number for event in before + rest] == list(range(len(before + rest)))
    assert rest[-1].response.output_text == SAYS
    assert "".join(event.delta for event in before + rest if event.type.endswith("text.delta")) == SAYS


@pytest.mark.parametrize("path", [PATH, "/v1/responses"])
async def test_a_refusal_at_the_second_replica_is_an_event(
    http: httpx.AsyncClient, backend: NullBackend, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.hold_after = 5
    prompt = {"messages": CHAT["messages"]} if path == PATH else {"input": "Hello?"}
    asked = {"model": "null", "stream": True, "tandem": {"resumable": True}} | prompt
    async with http.stream("POST", path, json=asked) as reply:
        before = await anext(aiter(reply.aiter_text()))
    id = before.removeprefix("id: ").partition(":")[0]
    monkeypatch.setattr(backend, "enter", AsyncMock(side_effect=NoCapacity("no room")))
    async with another(backend) as other:
        if path == PATH:
            reply = await other.post(path, headers={"Last-Event-ID": f"{id}:0"})
        else:
            reply = await other.get(f"{path}/{id}?stream=true")
    last = json.loads(reply.text.removesuffix("\n\n").rpartition("data: ")[2])
    assert reply.status_code == 200
    assert "no room" in json.dumps(last)


class Deaf(StreamCopies):
    """Copies of which nothing is heard."""

    def __init__(self) -> None:
        super().__init__(60.0)
        self.asked = 0

    async def take(self, owner: str, news: Sequence[StreamNews]) -> list[Outcome]:
        self.asked += 1
        raise Unavailable("no key service")

    async def claim(self, account: str, id: str, owner: str) -> None:
        raise Unavailable("no key service")


async def test_without_a_place_for_copies_streams_go_on(
    address: str, http: httpx.AsyncClient, backend: NullBackend
) -> None:
    backend.streams = deaf = Deaf()
    async with another(backend) as other:
        found = events((await other.post(PATH, json=CHAT)).text)
        assert said(found) == SAYS
        assert await rest(other, found[0][0]) == found[1:]
        reply = await other.post(PATH, headers={"Last-Event-ID": "chatcmpl-1:3"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")
    assert deaf.asked
