"""Routing over real Serve: sessions spread over the replicas of each pool, and stay where they were opened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from ray import serve

from tandem.app.main import build
from tandem.app.settings import Settings
from tandem.cluster.wire.peers import Peers
from tandem.deployments.control.router import told
from tandem.deployments.placement import profiles
from tandem.deployments.request.job import NoSuchDevice
from tandem.deployments.request.placement import PlanRequest, SketchPlan
from tandem.engine.base import EngineStats
from tests.conftest import Running

pytestmark = pytest.mark.timeout(240)  # the first test that needs Ray starts it

APP = "two-of-each"
POOL = {"replicas": 2, "engine": {"kind": "null", "mistake_every": 5}}


@pytest.fixture
def address(application: Running) -> Iterator[str]:
    """A second application on the Ray of these tests, without models: two verifiers, two drafters."""
    settings = Settings.model_validate(
        {
            "verifier": POOL,
            "drafter": POOL,
            "expander": {"replicas": 0},
            "router": {"routing": {"name": "round_robin"}},
            "endpoint": {"token": application.token},
        }
    )
    serve.run(build(settings), name=APP, route_prefix=f"/{APP}")
    yield f"{application.address}/{APP}"
    serve.delete(APP)


async def _counters(token: str) -> dict[str, list[EngineStats]]:
    """Of every replica, by pool, read over the wire."""
    scheduler, peers = serve.get_deployment_handle("Scheduler", APP), Peers(token=token)
    snapshot = await scheduler.snapshot.remote()
    counters = {
        pool: [await (await peers.engine(e.address, e.engine)).stats() for e in replicas]
        for pool, replicas in snapshot.pools.items()
    }
    await peers.close()
    return counters


async def test_sessions_go_to_both_replicas_and_stay(address: str, application: Running) -> None:
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        deadline = time.monotonic() + 60
        while not {"verifier": 2, "drafter": 2}.items() <= (await client.get("/readyz")).json().items():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        question = {
            "model": "tandem",
            "messages": [{"role": "user", "content": "Tell me about the town."}],
            "temperature": 0,
            "max_tokens": 100,
            "tandem": {"mode": "speculative"},
        }
        replies = await asyncio.gather(
            *(client.post("/v1/chat/completions", json=question) for _ in range(8))
        )
    answers = [reply.raise_for_status().json() for reply in replies]
    assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1
    assert all(answer["tandem"]["stats"]["modes"]["speculative"]["rounds"] > 10 for answer in answers)
    assert all(answer["tandem"]["stats"]["replans"] == 0 for answer in answers)
    counters = await _counters(application.token)
    for pool in ("verifier", "drafter"):
        assert [stats.opened for stats in counters[pool]] == [4, 4], "once each, and in turn"
    assert [stats.tokens_generated for stats in counters["verifier"]] == [400, 400]


async def test_a_refusal_is_an_answer() -> None:
    """A failure is none."""

    @told
    async def asked(error: Exception | None) -> int:
        if error is not None:
            raise error
        return 1

    refusal = NoSuchDevice("no device 'toaster'")
    assert await asked(None) == 1
    assert await asked(refusal) is refusal
    with pytest.raises(ZeroDivisionError):
        await asked(ZeroDivisionError())


async def test_what_was_measured_outlives_a_router(application: Running, tmp_path: Path) -> None:
    file = tmp_path / "profiles.json"
    settings = Settings.model_validate(
        {
            "verifier": {"engine": {"kind": "null"}},
            "drafter": {"replicas": 0},
            "expander": {"engine": {"kind": "null"}},
            "sketch": {"profiles": file, "models": {"null": {"capability": 1.0}}},
            "endpoint": {"token": application.token},
        }
    )

    async def plan(app: str, wanted: PlanRequest) -> SketchPlan:
        """Of a new router, once it knows the expander."""
        serve.run(build(settings), name=app, route_prefix=f"/{app}")
        router = serve.get_deployment_handle("Router", app)
        async with asyncio.timeout(60):
            while (made := await router.plan.remote(wanted)).reason == "no_device":  # noqa: ASYNC110 (it may come)
                await asyncio.sleep(0.1)
        return made

    first, second = "learns", "remembers"
    try:
        made = await plan(first, PlanRequest(1, 400, target_token_s=0.05))
        assert made.sketch
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(file.exists):  # noqa: ASYNC110 (a file has no such event)
                await asyncio.sleep(0.1)
        assert profiles.read(file).target_token_s == 0.05
        assert await plan(second, PlanRequest(2, 400)) == made
    finally:
        for app in (first, second):
            await asyncio.to_thread(serve.delete, app)
