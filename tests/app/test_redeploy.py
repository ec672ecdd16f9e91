"""An application that becomes another one under load: nothing fails, nothing breaks.

`benchmarks redeploy` does it at length.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from ray import serve

from app.main import build
from app.settings import Settings
from tests.conftest import Running

pytestmark = pytest.mark.timeout(240)  # the first test that needs Ray starts it

APP = "changing"
NULL: dict[str, Any] = {"kind": "null", "tokens_per_s": 100, "context": 2048}
TOKENS = 150  # 1.5 s
MODES: tuple[dict[str, str], ...] = ({"mode": "cloud"}, {"mode": "device", "device": "a"})


def settings(capacity: int = 1024, *devices: str) -> dict[str, Any]:
    return {
        "verifier": {"engine": NULL | {"capacity": capacity}},
        "drafter": {"replicas": 0},
        "hosts": [{"name": "edge", "engine": NULL, "devices": [{"name": name} for name in ("a", *devices)]}],
    }


def deploy(changed: dict[str, Any]) -> None:
    """As `serve deploy` does it with another `args`: every deployment is replaced. Returns when all of it is done."""
    serve.run(build(Settings.model_validate(changed)), name=APP, route_prefix=f"/{APP}")


@pytest.fixture
def address(application: Running) -> Iterator[str]:
    deploy(settings())
    yield f"{application.address}/{APP}"
    serve.delete(APP)


@pytest.fixture
async def http(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        yield client


async def stream(http: httpx.AsyncClient, mode: dict[str, str]) -> int:
    """Tokens of an answer that came whole; raises otherwise."""
    body = {
        "model": "tandem",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tandem": mode,
    }
    events = []
    async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200, (await reply.aread()).decode()
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line.removeprefix("data: ")))
    assert not [event for event in events if "error" in event]
    return int(events[-1]["usage"]["completion_tokens"])


async def test_no_request_fails_and_no_stream_breaks(http: httpx.AsyncClient) -> None:
    await devices(http, {"a"})
    answers: list[int] = []
    stop = asyncio.Event()

    async def ask_on(mode: dict[str, str]) -> None:
        while not stop.is_set():
            answers.append(await stream(http, mode))

    async with asyncio.TaskGroup() as asking:
        for number in range(8):
            asking.create_task(ask_on(MODES[number % len(MODES)]))
        await asyncio.to_thread(deploy, settings(512))
        await asyncio.to_thread(deploy, settings(512, "b"))
        await devices(http, {"a", "b"})
        stop.set()
    assert answers == [TOKENS] * len(answers)
    assert len(answers) > 16, "all the while"


async def devices(http: httpx.AsyncClient, names: set[str]) -> None:
    """Return when these are registered, and no others."""
    async with asyncio.timeout(60):
        while await registered(http) != names:  # noqa: ASYNC110 (HTTP tells of no events)
            await asyncio.sleep(0.1)


async def registered(http: httpx.AsyncClient) -> set[str]:
    return {device["name"] for device in (await http.get("/v1/devices")).json()["data"]}
