"""Operators' orders at a running application: what they take away is replaced in mid-answer, and comes back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
import ray

from tests.applications import deployed, replicas, until
from tests.conftest import Running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),  # the first test that needs Ray starts it
    pytest.mark.asyncio(loop_scope="module"),
]

APP = "ordered"
NULL: dict[str, Any] = {"kind": "null", "tokens_per_s": 50, "context": 2048}
TOKENS = 300
SETTINGS: dict[str, Any] = {
    "endpoint": {"drain_s": 0.5},
    "verifier": {"engine": NULL, "replicas": 2},
    "drafter": {"replicas": 0},
    "hosts": [{"name": "edge", "engine": NULL, "devices": [{"name": "a"}, {"name": "b"}]}],
}


@pytest.fixture(scope="module")
def address(application: Running) -> Iterator[str]:
    with deployed(SETTINGS, APP, application) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="module")
async def http(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:

        async def all_up() -> bool:
            found = await fleet(client)
            return len(found["devices"]) == 2 and len(found["pools"]["verifier"]) == 2

        await until(all_up)
        yield client


async def fleet(http: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get("/v1/fleet")).json()
    return found


async def order(http: httpx.AsyncClient, path: str, change: dict[str, Any]) -> None:
    reply = await http.patch(f"/v1/fleet/{path}", json=change)
    assert reply.status_code == 200, reply.text


async def answered(http: httpx.AsyncClient, path: str, change: dict[str, Any], **said: str) -> dict[str, Any]:
    """Give an order in mid-answer; return the stats of the answer, which must be whole. path: with {} for the endpoint
    that works for it."""
    body = {
        "model": "tandem",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tandem": said,
    }
    events: list[dict[str, Any]] = []
    async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200, (await reply.aread()).decode()
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            events.append(json.loads(line.removeprefix("data: ")))
            assert "error" not in events[-1], events[-1]
            if len(events) == 10:
                (working,) = (await fleet(http))["requests"]
                (endpoint,) = set(working["endpoints"].values())
                await order(http, path.format(endpoint), change)
    assert events[-1]["usage"]["completion_tokens"] == TOKENS
    stats: dict[str, Any] = next(e["tandem"]["stats"] for e in events if "stats" in e.get("tandem", {}))
    return stats


async def test_a_link_is_cut_in_mid_answer(http: httpx.AsyncClient) -> None:
    link = "devices/a"
    stats = await answered(http, link, {"link": {"cut": True}}, mode="device", device="a")
    assert stats["replans"] >= 1
    found = await fleet(http)
    assert found["links"]["a"]["cut"]
    assert found["missing"] == ["a"]
    await order(http, link, {"link": {"rtt_ms": 40, "down_mbit_per_s": 8, "loss": 0.01}})

    async def throttled() -> bool:
        told = {each["name"]: each for each in (await fleet(http))["devices"]}.get("a")
        return told is not None and told["rtt_s"] == 0.04 and told["link"]["down_bytes_per_s"] == 1e6

    await until(throttled)
    await order(http, link, {"link": None})
    assert (await fleet(http))["links"] == {}


async def test_a_device_is_stopped_in_mid_answer(http: httpx.AsyncClient) -> None:
    stats = await answered(http, "devices/{}", {"stopped": True}, mode="device", device="b")
    assert stats["replans"] >= 1

    async def gone() -> bool:
        return (await fleet(http))["missing"] == ["b"]

    await until(gone)
    await order(http, "devices/b", {"stopped": False})

    async def back() -> bool:
        return not (await fleet(http))["missing"]

    await until(back)


async def test_a_replica_is_drained_in_mid_answer(http: httpx.AsyncClient) -> None:
    stats = await answered(http, "replicas/{}", {"drained": True}, mode="cloud")
    assert stats["replans"] >= 1
    found = await fleet(http)
    (drained,), (left,) = found["drained"]["verifier"], found["pools"]["verifier"]
    assert (drained["sessions"], left["name"]) != (1, drained["name"])
    refused = await http.patch(f"/v1/fleet/replicas/{left['name']}", json={"drained": True})
    assert refused.json()["error"]["code"] == "order_refused"
    await order(http, f"replicas/{drained['name']}", {"drained": False})

    async def back() -> bool:
        return len((await fleet(http))["pools"]["verifier"]) == 2

    await until(back)


async def test_orders_outlive_the_scheduler(http: httpx.AsyncClient) -> None:
    await order(http, "devices/a", {"stopped": True})
    (scheduler,) = replicas(APP, "Scheduler").values()
    ray.kill(scheduler, no_restart=False)
    told: dict[str, Any] = {}

    async def same() -> bool:
        told.update(await fleet(http))
        return told.get("stopped") == ["a"] and told["missing"] == ["a"]

    await until(same)
    await order(http, "devices/a", {"stopped": False})

    async def back() -> bool:
        return not (await fleet(http))["missing"]

    await until(back)
