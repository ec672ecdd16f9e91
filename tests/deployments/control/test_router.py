"""Routing over real Serve: sessions spread over the replicas of each pool, and stay where they were opened."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import ray
from ray import serve
from ray.exceptions import RayActorError

from tandem.cluster.wire.peers import Peers
from tandem.deployments.modes.sketch import profiles
from tandem.deployments.modes.sketch.questions import PlanRequest, SketchPlan
from tandem.engine.base import EngineStats
from tests.applications import replicas, until
from tests.conftest import Running

pytestmark = [
    pytest.mark.slow,  # ten processes more; `test_assigner` and simulations test the same without Ray
    pytest.mark.timeout(240),  # the first test that needs Ray starts it
    pytest.mark.asyncio(loop_scope="session"),  # a Serve handle stays on the loop that first used it
]


async def _counters(token: str) -> dict[str, list[EngineStats]]:
    """Return the counters of every replica, by pool, read over the wire."""
    scheduler, peers = serve.get_deployment_handle("Scheduler", "pairs"), Peers(token=token)
    snapshot = await scheduler.snapshot.remote()
    counters = {
        pool: [await (await peers.engine(e.address, e.engine)).stats() for e in replicas]
        for pool, replicas in snapshot.pools.items()
    }
    await peers.close()
    return counters


async def test_sessions_go_to_both_replicas_and_stay(pairs: str, application: Running) -> None:
    async with httpx.AsyncClient(base_url=pairs, timeout=60) as client:

        async def up() -> bool:
            return {"verifier": 2, "drafter": 2}.items() <= (await client.get("/readyz")).json().items()

        await until(up)
        before = await _counters(application.token)
        question = {
            "model": "tandem",
            "messages": [{"role": "user", "content": "Tell me about the town."}],
            "temperature": 0,
            "max_tokens": 100,
            "tandem": {"mode": "speculative", "window": 4},
        }
        replies = await asyncio.gather(
            *(client.post("/v1/chat/completions", json=question) for _ in range(8))
        )
    answers = [reply.raise_for_status().json() for reply in replies]
    assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1
    assert all(answer["tandem"]["stats"]["modes"]["speculative"]["rounds"] > 10 for answer in answers)
    assert all(answer["tandem"]["stats"]["replans"] == 0 for answer in answers)
    after = await _counters(application.token)

    def grown(pool: str, counter: str) -> list[int]:
        both = zip(before[pool], after[pool], strict=True)
        return [getattr(new, counter) - getattr(old, counter) for old, new in both]

    assert grown("verifier", "opened") == grown("drafter", "opened") == [4, 4], "once each, and in turn"
    assert grown("verifier", "tokens_generated") == [400, 400]


@pytest.mark.usefixtures("pairs")
async def test_what_was_measured_outlives_a_router(profiles_file: Path) -> None:
    router = serve.get_deployment_handle("Router", "pairs")

    async def plan(wanted: PlanRequest) -> SketchPlan:
        """Return the router's plan, once it knows the expander."""
        async with asyncio.timeout(60):
            while True:
                with suppress(RayActorError):  # it is dying, or its successor is not up yet
                    made = await router.ask_mode.remote("tandem", "sketch", wanted)
                    if made.reason != "no_device":  # it may come
                        return made
                await asyncio.sleep(0.1)

    async def written() -> bool:
        return await asyncio.to_thread(profiles_file.exists)

    made = await plan(PlanRequest(1, 400, target_token_s=0.05))
    assert made.sketch
    await until(written)
    assert profiles.read(profiles_file).target_token_s == 0.05
    before = replicas("pairs", "Router")
    (actor,) = before.values()
    ray.kill(actor)

    async def replaced() -> bool:
        return not before.keys() & replicas("pairs", "Router").keys()

    await until(replaced)
    again = await plan(PlanRequest(2, 400))
    assert replace(again, load=made.load) == made, "the load is of the moment, and not measured"
