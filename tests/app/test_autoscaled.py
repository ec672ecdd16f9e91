"""A pool that grows and shrinks over real Ray, from nothing and back, while somebody asks: no request fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.applications import deployed, until
from tests.conftest import Running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),  # the first test that needs Ray starts it
    pytest.mark.asyncio(loop_scope="module"),
]

SETTINGS: dict[str, Any] = {
    "verifier": {
        "engine": {"kind": "torch", "model": "small", "max_sessions": 4, "kv_blocks": 256},
        "autoscaling": {
            "min_replicas": 0,
            "max_replicas": 3,
            "downscale_delay_s": 2.0,
            "to_zero_delay_s": 2.0,
            "policy": {"name": "work", "parameters": {"window_s": 4.0, "clear_s": 1.0}},
        },
    },
    "drafter": {"replicas": 0},
    "endpoint": {"drain_s": 1.0},
}
QUESTION = {
    "model": "tandem",
    "messages": [{"role": "user", "content": "Tell me all about the town of Marworth. " * 10}],
    "max_tokens": 100,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def address(application: Running) -> Iterator[str]:
    with deployed(SETTINGS, "scaled", application) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="module")
async def http(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=address, timeout=90, limits=httpx.Limits(max_connections=64)
    ) as client:
        yield client


async def replicas(http: httpx.AsyncClient) -> int:
    """Return the running replicas of the verifier, perhaps 0."""
    ready = await http.get("/readyz")
    assert ready.status_code == 200, ready.text
    return int(ready.json()["verifier"])


async def reached(http: httpx.AsyncClient, count: int) -> None:
    """Wait until there are `count` replicas."""

    async def there_are() -> bool:
        return await replicas(http) == count

    await until(there_are, within_s=90.0)


class Load:
    """Clients that repeat requests. answers: number of answers so far."""

    def __init__(self, http: httpx.AsyncClient, clients: int) -> None:
        self._http, self._clients = http, clients
        self.answers = 0

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(self._clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)
        assert self.answers

    _over = False

    async def _ask(self) -> None:
        while not self._over:
            answer = await self._http.post("/v1/chat/completions", json=QUESTION)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == QUESTION["max_tokens"]
            self.answers += 1


async def test_a_pool_follows_its_load(http: httpx.AsyncClient) -> None:
    """0 → 1 → 3 → 1 → 0, with everybody served all the while."""
    assert await replicas(http) == 0
    async with Load(http, 1):
        await reached(http, 1)
        async with Load(http, 24):
            await reached(http, 3)
        await reached(http, 1)
    await reached(http, 0)
    async with Load(http, 1):
        await reached(http, 1)


async def running(http: httpx.AsyncClient) -> int:
    """Return how many of the verifier's replicas have sessions with a place."""
    lines = (await http.get("/metrics")).text.splitlines()
    gauges = [line.split() for line in lines if line.startswith("vllm:num_requests_running{")]
    return sum('pool="verifier"' in labels and float(value) > 0 for labels, value in gauges)


async def test_what_waits_is_handed_to_new_replicas(http: httpx.AsyncClient) -> None:
    """One replica has four places for 60 requests, which all were there before the others are."""
    long = QUESTION | {"max_tokens": 300}
    async with Load(http, 1):
        await reached(http, 1)
    asked = [asyncio.create_task(http.post("/v1/chat/completions", json=long)) for _ in range(60)]

    async def handed_over() -> bool:
        return await running(http) > 1

    await until(handed_over, within_s=90.0)
    for answer in await asyncio.gather(*asked):
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 300
