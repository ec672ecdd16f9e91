"""Streams that outlive their client's connection, over real ones: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI
from starlette.types import Message

from tandem.app.api.http import kept_streams
from tandem.app.api.http.errors import DISCONNECTED
from tandem.app.api.http.kept_streams import KeptStream
from tandem.app.api.http.settings import ApiSettings
from tandem.deployments.access.kept.streams import StreamCopies
from tandem.deployments.access.keys import Role
from tandem.engine.base import EngineStopped
from tests.app.api.null_backend import NullBackend, times, uploading

SAYS = "Zürich 🗼 has three bridges, é and ü."
CHAT: dict[str, Any] = {
    "model": "null",
    "messages": [{"role": "user", "content": "Hello?"}],
    "stream": True,
    "tandem": {"resumable": True},
}
PATH = "/v1/chat/completions"


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[NullBackend]:
    backend = NullBackend(says=SAYS, ledger=tmp_path / "ledger.sqlite")
    await backend.treasury.open()
    yield backend
    await backend.treasury.close()


def events(text: str) -> list[tuple[str, str]]:
    """Return id and data of each whole event, without signs of life."""
    blocks = [block.split("\n") for block in text.split("\n\n")[:-1] if not block.startswith(":")]
    return [(id.removeprefix("id: "), data.removeprefix("data: ")) for id, data in blocks]


def said(found: list[tuple[str, str]]) -> str:
    chunks = [json.loads(data) for _, data in found if data != "[DONE]"]
    return "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)


async def broken_off(address: str, backend: NullBackend, after: int, **asked: Any) -> list[tuple[str, str]]:
    """Ask for a stream and break the connection when the job holds; returns the events until then."""
    backend.hold_after = after
    async with uploading(address, json.dumps(CHAT | asked)) as (reader, writer):
        await times(1, backend.held)
        found: list[tuple[str, str]] = []
        got = ""
        while said(found) != SAYS.encode()[:after].decode():
            got += (await reader.read(2**16)).decode()
            lines = got.split("\n")[:-1]
            ids, data = (
                [line.partition(": ")[2] for line in lines if line.startswith(f)] for f in ("id:", "data:")
            )
            found = list(zip(ids, data, strict=False))
        writer.transport.abort()
    return found


async def test_the_rest_comes_exactly_once(
    address: str, http: httpx.AsyncClient, backend: NullBackend
) -> None:
    before = await broken_off(address, backend, after=5)
    assert backend.closed.locked(), "it goes on"
    backend.go.set()
    reply = await http.post(PATH, headers={"Last-Event-ID": before[-1][0]})
    assert reply.headers["content-type"].startswith("text/event-stream")
    after = events(reply.text)
    name, _, _ = before[0][0].partition(":")
    assert [id for id, _ in before + after] == [f"{name}:{n}" for n in range(len(before + after))]
    assert said(before + after) == SAYS
    assert after[-1][1] == "[DONE]"
    assert len(backend.jobs) == 1
    assert [seen.status for seen in backend.observations] == [200]
    again = await http.post(PATH, headers={"Last-Event-ID": before[0][0]}, json=CHAT)
    assert said(before[:1] + events(again.text)) == SAYS, "as often as one likes, from anywhere"
    assert len(backend.jobs) == 1


async def test_a_client_that_is_quick_follows_the_stream(
    address: str, http: httpx.AsyncClient, backend: NullBackend
) -> None:
    before = await broken_off(address, backend, after=5)
    async with http.stream("POST", PATH, headers={"Last-Event-ID": before[0][0]}) as reply:
        lines = reply.aiter_lines()
        assert [await anext(lines) for _ in range(2)] == [f"id: {before[1][0]}", f"data: {before[1][1]}"]
        backend.go.set()
        rest = [line async for line in lines]
    assert "data: [DONE]" in rest


async def test_without_the_client_it_ends_after_a_while(
    address: str, http: httpx.AsyncClient, backend: NullBackend
) -> None:
    backend.api = ApiSettings(resume_s=0.05)
    before = await broken_off(address, backend, after=5)
    await times(1, backend.closed)
    assert (await backend.engine.stats()).sessions == 0
    assert len(backend.observations) == 1, "all that its end changes comes before"
    reply = await http.post(PATH, headers={"Last-Event-ID": before[-1][0]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "stream_not_found")
    assert [seen.status for seen in backend.observations] == [DISCONNECTED]


async def test_a_client_may_end_it(address: str, http: httpx.AsyncClient, backend: NullBackend) -> None:
    before = await broken_off(address, backend, after=5)
    path = f"{PATH}/{before[-1][0].partition(':')[0]}"
    assert (await http.delete(path)).json()["deleted"] is True
    await times(1, backend.closed)
    assert (await backend.engine.stats()).sessions == 0
    assert (await http.delete(path)).json()["error"]["code"] == "stream_not_found"


async def test_without_any_event_it_ends_with_its_client(address: str, backend: NullBackend) -> None:
    """The id is not known to anybody yet."""
    backend.hold_after = 1
    backend.burst = 100
    async with uploading(address, json.dumps(CHAT)) as (_, writer):
        await times(1, backend.held)
        writer.transport.abort()
        await times(1, backend.closed)
    assert [seen.status for seen in backend.observations] == [DISCONNECTED]


async def test_a_silent_stream_tells_that_it_lives(
    address: str, http: httpx.AsyncClient, backend: NullBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its first event, too."""
    monkeypatch.setattr(kept_streams, "KEEP_ALIVE_S", 0.02)
    for after in (1, 5):
        backend.hold_after, backend.burst = after, 100 if after == 1 else 1
        backend.go.clear()
        async with http.stream("POST", PATH, json=CHAT) as reply:
            assert reply.status_code == 200
            lines, got = reply.aiter_lines(), list[str]()
            while got[-2:] != [": keep-alive"] * 2:
                got.append(await anext(lines))
            backend.go.set()
            got += [line async for line in lines]
        blocks = "\n".join(got).replace(": keep-alive\n", "")
        assert said(events(blocks + "\n")) == SAYS


async def test_a_refusal_after_a_sign_of_life_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_streams, "KEEP_ALIVE_S", 0.01)
    stream, sent = KeptStream("a", "me"), list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)
        if len(sent) == 2:
            await stream.take({"type": "http.response.start", "status": 429, "headers": []})
            await stream.take({"type": "http.response.body", "body": b'{"error":{}}'})

    await stream.send(0, send)
    assert sent[0]["status"] == 200
    assert [message["body"] for message in sent[1:]] == [b": keep-alive\n", b'data: {"error":{}}\n\n', b""]


async def test_nobody_elses_stream_is_found(
    address: str, http: httpx.AsyncClient, backend: NullBackend
) -> None:
    before = await broken_off(address, backend, after=5)
    backend.go.set()
    _, secret = await backend.treasury.make("ada", Role.OPERATOR, {})
    headers = {"authorization": f"Bearer {secret}", "Last-Event-ID": before[-1][0]}
    assert (await http.post(PATH, headers=headers)).status_code == 404
    name = before[-1][0].partition(":")[0]
    assert (await http.delete(f"{PATH}/{name}", headers=headers)).status_code == 404
    headers.pop("authorization")
    assert (await http.post(PATH, headers=headers)).status_code == 401


@pytest.mark.parametrize(
    ("last", "status", "code"),
    [
        ("nonsense", 400, "invalid_value"),
        ("chatcmpl-1:2", 404, "stream_not_found"),
        ("a:-1", 400, "invalid_value"),
    ],
)
async def test_events_that_there_are_not(http: httpx.AsyncClient, last: str, status: int, code: str) -> None:
    reply = await http.post(PATH, headers={"Last-Event-ID": last}, json=CHAT)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


async def test_an_event_to_come_is_refused(http: httpx.AsyncClient) -> None:
    found = events((await http.post(PATH, json=CHAT)).text)
    name = found[0][0].partition(":")[0]
    assert (await http.post(PATH, headers={"Last-Event-ID": f"{name}:{len(found)}"})).status_code == 400
    rest = await http.post(PATH, headers={"Last-Event-ID": found[-1][0]})
    assert (rest.status_code, rest.text) == (200, "")


async def test_a_refusal_has_its_status_and_is_not_kept(
    http: httpx.AsyncClient, backend: NullBackend
) -> None:
    backend.fail_after = (0, EngineStopped("never reached"))
    reply = await http.post(
        PATH, json=CHAT | {"tandem": {"resumable": True, "device": "nobody", "mode": "device"}}
    )
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "device_not_found")
    assert [seen.status for seen in backend.observations] == [404]


async def test_a_failure_is_an_event_to_come_back_to(http: httpx.AsyncClient, backend: NullBackend) -> None:
    backend.fail_after = (5, EngineStopped("the last verifier is gone"))
    found = events((await http.post(PATH, json=CHAT)).text)
    assert json.loads(found[-1][1])["error"]["code"] == "engine_stopped"
    rest = events((await http.post(PATH, headers={"Last-Event-ID": found[-2][0]})).text)
    assert rest == found[-1:]


async def test_only_streams_and_only_where_they_are_kept(
    http: httpx.AsyncClient, backend: NullBackend
) -> None:
    reply = await http.post(PATH, json=CHAT | {"stream": False})
    assert (reply.status_code, "tandem.resumable" in reply.json()["error"]["message"]) == (400, True)
    backend.api = ApiSettings(resume_s=0)
    reply = await http.post(PATH, json=CHAT)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tandem.resumable")


async def test_streams_without_a_client_make_room(
    http: httpx.AsyncClient, backend: NullBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = events((await http.post(PATH, json=CHAT)).text)
    size = sum(len(f"id: {id}\ndata: {data}\n\n".encode()) for id, data in first)
    monkeypatch.setattr(kept_streams, "MOST_BYTES", size)  # the second, of one token, fits by itself
    second = events((await http.post(PATH, json=CHAT | {"max_tokens": 1})).text)
    assert isinstance(backend.streams, StreamCopies)
    await backend.streams.forget([("anonymous", first[0][0].partition(":")[0])])
    assert (await http.post(PATH, headers={"Last-Event-ID": first[-1][0]})).status_code == 404
    assert (await http.post(PATH, headers={"Last-Event-ID": second[-1][0]})).status_code == 200


async def test_openais_client_reads_them(openai: AsyncOpenAI) -> None:
    stream = await openai.chat.completions.create(
        model="null",
        messages=[{"role": "user", "content": "Hello?"}],
        stream=True,
        extra_body={"tandem": {"resumable": True}},
    )
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == SAYS


async def test_responses_as_openai_resumes_them(openai: AsyncOpenAI, backend: NullBackend) -> None:
    backend.hold_after = 5
    stream = await openai.responses.create(
        model="null", input="Hello?", stream=True, extra_body={"tandem": {"resumable": True}}
    )
    before = [await anext(stream) for _ in range(6)]
    await stream.close()
    id, last = before[0].response.id, before[-1].sequence_number
    backend.go.set()
    rest = [event async for event in await openai.responses.retrieve(id, stream=True, starting_after=last)]
    assert [event.sequence_number for event in before + rest] == list(range(len(before + rest)))
    assert rest[-1].response.output_text == SAYS
    whole = [event async for event in await openai.responses.retrieve(id, stream=True)]
    assert [event.type for event in whole] == [event.type for event in before + rest]
    assert (await openai.responses.retrieve(id)).output_text == SAYS
    assert len(backend.jobs) == 1


async def test_a_response_without_a_stream_has_none_to_resume(http: httpx.AsyncClient) -> None:
    found = (await http.post("/v1/responses", json={"model": "null", "input": "Hello?"})).json()["id"]
    assert (await http.get(f"/v1/responses/{found}?stream=true")).status_code == 404
    reply = await http.get(f"/v1/responses/{found}?starting_after=3")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "starting_after")


@given(
    batches=st.lists(st.lists(st.binary(max_size=9).map(lambda raw: b"data: " + raw.hex().encode()))),
    cuts=st.lists(st.integers(0, 40)),
)
def test_any_cuts_of_any_batches_give_every_event_once(batches: list[list[bytes]], cuts: list[int]) -> None:
    async def main() -> None:
        stream, sent = KeptStream("a", "ada"), [event for batch in batches for event in batch]
        await stream.take({"type": "http.response.start", "status": 200, "headers": []})
        for batch in batches:
            body = b"".join(event + b"\n\n" for event in batch)
            await stream.take({"type": "http.response.body", "body": body, "more_body": True})
        stream.end()
        got: list[bytes] = []
        for cut in [*cuts, len(sent)]:
            room = cut
            parts: list[bytes] = []

            async def send(message: Message, parts: list[bytes] = parts) -> None:
                parts.append(message.get("body", b""))

            await stream.send(len(got), send)
            got += b"".join(parts).split(b"\n\n")[:-1][:room]
        assert got == [b"id: a:%d\n%s" % numbered for numbered in enumerate(sent)]

    asyncio.run(main())
