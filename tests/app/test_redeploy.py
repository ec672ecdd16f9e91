"""An application that becomes another one, or loses parts, under load: what can survive does.

`benchmarks redeploy` changes it at length.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import ray
from ray import serve

from tests.applications import actors, deploy, deployed, replicas, until
from tests.cluster.certificate import make_certificate
from tests.conftest import Running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),  # the first test that needs Ray starts it
    pytest.mark.asyncio(loop_scope="module"),  # a Serve handle stays on the loop that first used it
]

APP = "changing"
NULL: dict[str, Any] = {"kind": "null", "tokens_per_s": 100, "context": 2048}
TOKENS, LONG = 150, 1000  # 1.5 s and 10 s
MANY = 32  # streams
CONTROLLER = "SERVE_CONTROLLER_ACTOR"  # Serve's own
SINGLE = ("Scheduler", "Router", "Access")  # `test_end_to_end` kills them beneath a running answer, too
MODES: tuple[dict[str, str], ...] = ({"mode": "cloud"}, {"mode": "device", "device": "a"})


def settings(tls: dict[str, Path], capacity: int = 1024, *devices: str) -> dict[str, Any]:
    return {
        "endpoint": {"tls": tls},
        "verifier": {"engine": NULL | {"capacity": capacity}},
        "drafter": {"replicas": 0},
        "ingress_replicas": 2,
        "hosts": [{"name": "edge", "engine": NULL, "devices": [{"name": name} for name in ("a", *devices)]}],
    }


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the wire's TLS files, used here alone."""
    certificate, key = make_certificate(tmp_path_factory.mktemp("tls"))
    return {"certificate": certificate, "key": key, "authority": certificate}


@pytest.fixture(scope="module")
def address(application: Running, tls: dict[str, Path]) -> Iterator[str]:
    with deployed(settings(tls), APP, application) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="module")
async def http(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        yield client


class Broken(Exception):
    """An answer that ended with an error, or before its end."""


async def stream(
    http: httpx.AsyncClient,
    mode: dict[str, str],
    tokens: int = TOKENS,
    begun: Callable[[], object] = lambda: None,
) -> int:
    """Tokens of an answer that came whole; raises Broken otherwise, or what httpx raises. begun: called when something
    has come."""
    body = {
        "model": "tandem",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": tokens,
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
                begun()
                events.append(json.loads(line.removeprefix("data: ")))
    if "usage" not in (events or [{}])[-1]:
        raise Broken(events[-1:])
    return int(events[-1]["usage"]["completion_tokens"])


async def test_no_request_fails_and_no_stream_breaks(http: httpx.AsyncClient, tls: dict[str, Path]) -> None:
    await devices(http, "a")
    answers: list[int] = []
    stop = asyncio.Event()

    async def ask_on(mode: dict[str, str]) -> None:
        while not stop.is_set():
            answers.append(await stream(http, mode))

    async with asyncio.TaskGroup() as asking:
        for number in range(8):
            asking.create_task(ask_on(MODES[number % len(MODES)]))
        await asyncio.to_thread(deploy, settings(tls, 512), APP)
        await asyncio.to_thread(deploy, settings(tls, 512, "b"), APP)
        await devices(http, "a", "b")
        stop.set()
    assert answers == [TOKENS] * len(answers)
    assert len(answers) > 16, "all the while"


@pytest.mark.parametrize(
    "part", [CONTROLLER, *(pytest.param(part, marks=pytest.mark.nightly) for part in SINGLE)]
)
async def test_no_stream_needs_the_control_plane(http: httpx.AsyncClient, part: str) -> None:
    """Use production's timeouts; new requests wait until it is back."""
    await devices(http, "a")
    streams = await many_streams(http)
    victim, *_ = (actors(part) if part == CONTROLLER else replicas(APP, part)).values()
    pid = pid_of(victim)
    ray.kill(victim, no_restart=part != CONTROLLER)
    later = asyncio.gather(*(stream(http, MODES[0]) for _ in range(4)))
    assert await streams == [LONG] * MANY
    assert await later == [TOKENS] * 4
    assert not is_running(pid), "it was another one"


async def test_a_dead_replica_of_the_api_takes_its_own_streams_along_and_no_others(
    http: httpx.AsyncClient,
) -> None:
    await devices(http, "a")
    while True:
        streams = await many_streams(http)
        both = list(replicas(APP, "Ingress").values())
        if all(busy := [ongoing(replica) for replica in both]):
            break
        await streams  # Serve gave one of them everything
    killed_s = time.monotonic()
    ray.kill(both[0])
    outcomes = await streams
    took_s = time.monotonic() - killed_s
    whole = [outcome for outcome in outcomes if outcome == LONG]
    broken = [outcome for outcome in outcomes if isinstance(outcome, (httpx.HTTPError, Broken))]
    assert len(whole) + len(broken) == MANY, outcomes
    assert len(broken) == busy[0], "those on the one that died"
    assert took_s < 30, "whoever has lost it is told"
    assert await asyncio.gather(*(stream(http, MODES[0]) for _ in range(8))) == [TOKENS] * 8
    await nothing_is_under_way()  # the engines have heard of it


async def many_streams(http: httpx.AsyncClient) -> asyncio.Future[list[int | BaseException]]:
    """Streams that have begun, four of them on the device, which takes no more."""
    begun: set[int] = set()
    modes = (MODES[n % (MANY // 4) == 0] for n in range(MANY))
    asked = (stream(http, mode, LONG, partial(begun.add, n)) for n, mode in enumerate(modes))
    streams = asyncio.gather(*asked, return_exceptions=True)

    async def all_have() -> bool:
        return len(begun) == MANY

    await until(all_have)
    return streams


async def nothing_is_under_way() -> None:
    """Return when verifiers and devices have no sessions."""
    scheduler = serve.get_deployment_handle("Scheduler", APP)

    async def all_quiet() -> bool:
        snapshot = await scheduler.snapshot.remote()
        found = [e.sessions for pool in snapshot.pools.values() for e in pool]
        return not any(found) and not any(device.sessions for device in snapshot.devices.values())

    await until(all_quiet)


def ongoing(replica: Any) -> int:
    """Requests that it works on."""
    return int(ray.get(replica.get_num_ongoing_requests.remote()))


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def pid_of(actor: Any) -> int:
    return int(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())))


async def devices(http: httpx.AsyncClient, *names: str) -> None:
    """Return when these are registered."""

    async def registered() -> bool:
        return {d["name"] for d in (await http.get("/v1/devices")).json()["data"]} >= set(names)

    await until(registered)
