"""Load of the robustness benchmarks: what counts as an answer, a broken one, and a refused one."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator

import httpx
import pytest

from tandem.benchmarks.robustness.load import (
    PROMPTS,
    Broken,
    Outcome,
    answer,
    ask_on,
    processes,
)

CLOUD = {"mode": "cloud"}


def event(text: str = "", finish: str | None = None) -> bytes:
    choice = {"delta": {"content": text}, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


class Events(httpx.AsyncByteStream):
    """A stream of events, which breaks off where one is None."""

    def __init__(self, *events: bytes | None) -> None:
        self.events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for each in self.events:
            if each is None:
                raise httpx.ReadError("broken off")
            yield each


def client(*replies: httpx.Response) -> httpx.AsyncClient:
    """Return a client that gets these replies, the last one again and again."""
    left = list(replies)

    def reply(request: httpx.Request) -> httpx.Response:
        return left.pop(0) if len(left) > 1 else left[0]

    return httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(reply))


def streamed(*events: bytes | None) -> httpx.Response:
    return httpx.Response(200, stream=Events(*events))


async def test_an_answer_is_its_text_until_it_says_that_it_has_ended() -> None:
    async with client(streamed(event("Mar"), event("worth"), event(finish="stop"))) as http:
        read = await answer(http, PROMPTS[0], CLOUD)
    assert read.text == "Marworth"
    assert 0 < read.first_s <= read.gap_s < 10


async def test_a_client_comes_back_to_a_resumable_answer() -> None:
    sent: list[str | None] = []
    parts = [
        streamed(b"id: a:1\n" + event("Mar"), None),
        httpx.Response(503),
        streamed(b"id: a:2\n" + event("worth", "stop")),
    ]

    def reply(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers.get("Last-Event-ID"))
        return parts[len(sent) - 1]

    async with httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(reply)) as http:
        assert (await answer(http, PROMPTS[0], CLOUD | {"resumable": True})).text == "Marworth"
    assert sent == [None, "a:1", "a:1"]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((event("Mar"), None), "broken off"),
        ((event("Mar"),), "without saying why"),
        ((b'data: {"error": {"message": "no more"}}\n\n',), "no more"),
    ],
)
async def test_an_answer_that_ends_otherwise_is_broken(events: tuple[bytes | None, ...], said: str) -> None:
    async with client(streamed(*events)) as http:
        with pytest.raises(Broken, match=said):
            await answer(http, PROMPTS[0], CLOUD)


async def outcome_of(http: httpx.AsyncClient, again_s: float, ends: int) -> Outcome:
    """Return the outcome once there are so many ends of requests."""
    outcome = Outcome()
    asking = asyncio.create_task(ask_on(http, CLOUD, dict.fromkeys(PROMPTS, "right"), outcome, again_s))
    async with asyncio.timeout(30):
        while len(outcome.failures) + len(outcome.breaks) + len(outcome.waited_s) < ends:  # noqa: ASYNC110
            await asyncio.sleep(0)
    asking.cancel()
    return outcome


async def test_a_refused_question_is_asked_again_and_the_time_counts() -> None:
    refused = httpx.Response(503, text="nobody is there")
    async with client(refused, refused, streamed(event("right"), event(finish="stop")), refused) as http:
        outcome = await outcome_of(http, again_s=0.5, ends=2)
    assert len(outcome.gaps_s) == 1
    assert outcome.gaps_s[0] > 0.2, "two pauses"
    (failure,) = outcome.failures
    assert "503 nobody is there" in failure


async def test_another_answer_than_the_targets_is_broken() -> None:
    async with client(streamed(event("wrong"), event(finish="stop"))) as http:
        outcome = await outcome_of(http, again_s=0.0, ends=2)
    assert "another answer: 'wrong' for 'right'" in outcome.breaks[0]


async def test_processes_are_found_by_title_or_program() -> None:
    child = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        for title in ("sleep\0" + "60", "sleep"):
            assert child.pid in [process.pid for process in processes(title)]
        assert not processes("no such title")
        assert os.getpid() not in [process.pid for process in processes("sleep")]
    finally:
        child.kill()
        await child.wait()
