"""Streams: their events, how tokens are gathered into chunks, and clients that leave."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from openai import APIError, AsyncOpenAI

from tandem.app.api.completions.gather import ChunkCoalescer
from tandem.app.api.routes import create_api
from tandem.engine.base import EngineStopped
from tests.app.api.null_backend import NullBackend, events, times, uploading
from tests.servers import served

HELLO = [{"role": "user", "content": "Hello?"}]
CHAT = {"model": "null", "messages": HELLO, "stream": True}
SAYS = "Zürich 🗼 has three bridges, é and ü."


@pytest.fixture
async def backend() -> NullBackend:
    return NullBackend(says=SAYS)


async def test_a_stream(openai):
    chunks = [chunk async for chunk in await openai.chat.completions.create(**CHAT)]
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert [c.choices[0].delta.role for c in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert "".join(c.choices[0].delta.content for c in chunks) == SAYS
    assert "\ufffd" not in "".join(c.choices[0].delta.content for c in chunks)
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all(c.usage is None for c in chunks)


async def test_the_form_of_a_stream(http):
    reply = await http.post("/v1/chat/completions", json=CHAT)
    assert reply.headers["content-type"].startswith("text/event-stream")
    chunk = events(reply.text)[0]
    assert chunk.keys() == {"id", "object", "created", "model", "choices", "tandem"}
    assert chunk["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": "Z"}, "logprobs": None, "finish_reason": None}
    ]
    assert chunk["tandem"] == {"origins": [["cloud", 1]]}


async def test_usage_when_asked(openai):
    stream = await openai.chat.completions.create(**CHAT, stream_options={"include_usage": True})
    *chunks, last = [chunk async for chunk in stream]
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    assert last.choices == []
    assert last.usage.completion_tokens == len(SAYS.encode()) + 1
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens


async def test_a_stream_equals_the_whole_answer(http):
    asked = CHAT | {"logprobs": True, "top_logprobs": 1, "stop": ["ü."], "tandem": {"mode": "speculative"}}
    chunks = events((await http.post("/v1/chat/completions", json=asked)).text)
    whole = (await http.post("/v1/chat/completions", json=asked | {"stream": False})).json()
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(c["delta"]["content"] for c in choices) == whole["choices"][0]["message"]["content"]
    assert [t for c in choices for t in c["logprobs"]["content"]] == whole["choices"][0]["logprobs"][
        "content"
    ]

    def spread(runs):
        return [origin for origin, characters in runs for _ in range(characters)]

    assert spread(run for c in chunks for run in c["tandem"]["origins"]) == spread(whole["tandem"]["origins"])
    assert (
        chunks[-1]["tandem"]["stats"]["tokens"]["by_origin"]
        == whole["tandem"]["stats"]["tokens"]["by_origin"]
    )


async def test_origins_add_up_to_the_text_of_every_chunk(http):
    asked = CHAT | {"tandem": {"mode": "speculative"}}
    for chunk in events((await http.post("/v1/chat/completions", json=asked)).text):
        said = sum(characters for _, characters in chunk["tandem"]["origins"])
        assert said == len(chunk["choices"][0]["delta"]["content"])


async def test_the_last_chunk_has_the_statistics(http):
    *chunks, last = events((await http.post("/v1/chat/completions", json=CHAT)).text)
    assert all("stats" not in chunk["tandem"] for chunk in chunks)
    assert last["tandem"]["stats"]["tokens"]["output"] == len(SAYS.encode()) + 1


async def test_choices_have_their_index(openai):
    texts = ["", "", ""]
    finished = []
    async for chunk in await openai.chat.completions.create(**CHAT, n=3):
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content
        finished += [choice.index] if choice.finish_reason else []
    assert texts == [SAYS] * 3
    assert sorted(finished) == [0, 1, 2]


async def test_the_first_token_does_not_wait(openai, backend):
    backend.hold_after = 1
    stream = await openai.chat.completions.create(**CHAT)
    first = await anext(stream)
    assert first.choices[0].delta.content == "Z"
    assert (await backend.engine.stats()).tokens_generated == 1
    backend.go.set()
    assert "Z" + "".join([c.choices[0].delta.content async for c in stream]) == SAYS


@asynccontextmanager
async def sharing(coalescer: ChunkCoalescer, backend: NullBackend) -> AsyncIterator[AsyncOpenAI]:
    """A client of an API whose streams share that coalescer."""
    async with (
        served(create_api(backend, coalescer=coalescer)) as address,
        AsyncOpenAI(base_url=f"{address}/v1", api_key="none", timeout=20) as openai,
    ):
        yield openai


async def test_later_tokens_are_gathered(backend):
    """An hour between chunks leaves two: the first token, and at the end all the others."""
    async with sharing(ChunkCoalescer(chunks_per_s=1 / 3600), backend) as openai:
        chunks = [chunk async for chunk in await openai.chat.completions.create(**CHAT)]
    assert [c.choices[0].delta.content for c in chunks] == ["Z", SAYS[1:]]


async def test_gathered_tokens_are_sent_after_the_interval(backend):
    """Also if no token follows."""
    backend.hold_after = 4
    async with sharing(ChunkCoalescer(chunks_per_s=20), backend) as openai:
        stream = await openai.chat.completions.create(**CHAT)
        assert [(await anext(stream)).choices[0].delta.content for _ in range(2)] == ["Z", "ür"]
        backend.go.set()
        assert "Zür" + "".join([c.choices[0].delta.content async for c in stream]) == SAYS


async def test_the_interval_grows_with_the_open_streams(backend):
    coalescer = ChunkCoalescer(chunks_per_s=1000)
    backend.hold_after = 1
    async with sharing(coalescer, backend) as openai:
        streams = [await openai.chat.completions.create(**CHAT) for _ in range(5)]
        assert coalescer.interval_s() == pytest.approx(0.005)
        backend.go.set()
        for stream in streams:
            assert "".join([c.choices[0].delta.content async for c in stream]) == SAYS
    assert coalescer.interval_s() == 0


async def test_an_error_in_the_middle_ends_the_stream_with_an_event(openai, http, backend):
    backend.fail_after = (5, EngineStopped("the last verifier is gone"))
    reply = await http.post("/v1/chat/completions", json=CHAT)
    *chunks, last = [json.loads(d.removeprefix("data: ")) for d in reply.text.strip().split("\n\n")]
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == "Züri"
    assert last["error"]["code"] == "engine_stopped"
    with pytest.raises(APIError, match="the last verifier is gone"):
        async for _ in await openai.chat.completions.create(**CHAT):
            pass


async def test_one_failing_choice_ends_all(http, backend):
    plain = backend.run

    async def run(job):
        if job.sampling.seed == 8:
            await backend.held.acquire()  # the other choice is in the middle of its answer
            raise EngineStopped("gone")
        async for delta in plain(job):
            yield delta

    backend.run = run
    backend.hold_after = 2
    reply = await http.post("/v1/chat/completions", json=CHAT | {"n": 2, "seed": 7})
    assert reply.text.endswith("\n\n")
    assert "engine_stopped" in reply.text
    await times(1, backend.closed)
    assert (await backend.engine.stats()).sessions == 0


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize(
    "options", [{"stream": False}, {}, {"tandem": {"paced": True, "reader_rate": 0.001}}], ids=json.dumps
)
async def test_the_work_stops_when_the_client_leaves(address, backend, options, tokens):
    """Over a socket that is closed hard, before and after the first chunk."""
    backend.hold_after = tokens
    asked = CHAT | {"n": 2} | options
    async with uploading(address, json.dumps(asked)) as (reader, writer):
        await times(2, backend.held)
        if asked["stream"]:
            await reader.readuntil(b"data: ")
        writer.transport.abort()
        await times(2, backend.closed, within_s=0.5)
    stats = await backend.engine.stats()
    assert (stats.cancelled, stats.sessions, stats.tokens_generated) == (2, 0, 2 * tokens)


async def test_a_client_may_leave_before_the_first_token(address, backend):
    reached = asyncio.Event()

    async def run(job):
        try:
            reached.set()
            await asyncio.Event().wait()
            yield
        finally:
            backend.closed.release()

    backend.run = run
    async with httpx.AsyncClient(base_url=address) as http:
        waiting = asyncio.create_task(http.post("/v1/chat/completions", json=CHAT))
        await reached.wait()
        waiting.cancel()
        await times(1, backend.closed, within_s=0.5)
