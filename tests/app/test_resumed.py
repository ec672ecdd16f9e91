"""A resumable stream through Serve and its proxy: the answer outlives its client's connection."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
import ray

from tests.applications import deployed, replicas, until
from tests.conftest import Running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("ray")]

PACED = {"verifier": {"engine": {"kind": "null", "tokens_per_s": 20}}, "drafter": {"replicas": 0}}
ASKED = {
    "model": "tandem",
    "messages": [{"role": "user", "content": "Hello?"}],
    "max_tokens": 40,
    "temperature": 0,
}


async def test_the_rest_comes_exactly_once(application: Running) -> None:
    resumable = ASKED | {"stream": True, "tandem": {"resumable": True}}
    with deployed(PACED, "resumed", application) as address:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            url = f"{address}/v1/chat/completions"
            whole = (await http.post(url, json=ASKED)).json()["choices"][0]["message"]["content"]
            found: list[tuple[str, str]] = []
            async with http.stream("POST", url, json=resumable) as reply:
                lines = reply.aiter_lines()
                while len(found) < 5:
                    found.append(await event(lines))
            async with http.stream("POST", url, headers={"Last-Event-ID": found[-1][0]}) as reply:
                assert reply.status_code == 200
                lines = reply.aiter_lines()
                await append(found, lines)
    name = found[0][0].partition(":")[0]
    assert [id for id, _ in found] == [f"{name}:{number}" for number in range(len(found))]
    chunks = [json.loads(data) for _, data in found[:-1]]
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == whole


async def test_it_outlives_every_replica_of_the_api(application: Running) -> None:
    """A replica that comes later goes on from the copy."""
    asked = ASKED | {"max_tokens": 100}
    resumable = asked | {"stream": True, "tandem": {"resumable": True}}
    with deployed(PACED, "outlived", application) as address:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            url = f"{address}/v1/chat/completions"
            whole = (await http.post(url, json=asked)).json()["choices"][0]["message"]["content"]
            found: list[tuple[str, str]] = []
            async with http.stream("POST", url, json=resumable) as reply:
                lines = reply.aiter_lines()
                while len(found) < 5:
                    found.append(await event(lines))
                killed = replicas("outlived", "Ingress")
                for replica in killed.values():
                    ray.kill(replica, no_restart=True)
                with pytest.raises(httpx.RemoteProtocolError):
                    await append(found, lines)

            async def resumed() -> bool:
                async with http.stream("POST", url, headers={"Last-Event-ID": found[-1][0]}) as reply:
                    if reply.status_code != 200:
                        assert reply.status_code in (500, 503)
                        return False
                    lines = reply.aiter_lines()
                    await append(found, lines)
                    return True

            await until(resumed)
    name = found[0][0].partition(":")[0]
    assert [id for id, _ in found] == [f"{name}:{number}" for number in range(len(found))]
    chunks = [json.loads(data) for _, data in found[:-1]]
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == whole


async def event(lines: AsyncIterator[str]) -> tuple[str, str]:
    """Return id and data of the next event."""
    id, data, empty = [await anext(lines) for _ in range(3)]
    assert not empty
    return id.removeprefix("id: "), data.removeprefix("data: ")


async def append(found: list[tuple[str, str]], lines: AsyncIterator[str]) -> None:
    """Add all events to come."""
    while found[-1][1] != "[DONE]":
        found.append(await event(lines))
