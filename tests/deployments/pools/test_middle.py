"""The middle over real Serve: listed, counted, and driven from a device's process; the ingress has no part in it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from ray import serve

from tandem.cluster.wire.peers import Peers
from tandem.deployments.modes.base import Services
from tandem.deployments.modes.executor import Executor
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import Job
from tandem.deployments.request.session import Reach
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.routing import Routing
from tandem.engine import family
from tandem.engine.base import Engine, Sampling
from tandem.engine.text.tokenizer import Tokenizer
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing
from tests.applications import until
from tests.conftest import Running
from tests.engine.torch.split_parts import Parts

pytestmark = [
    pytest.mark.slow,  # `test_split` tests the same without Ray
    pytest.mark.timeout(240),  # the first test that needs Ray starts it
    pytest.mark.asyncio(loop_scope="session"),  # a Serve handle stays on the loop that first used it
]

LAYERS = 2


async def test_a_device_is_answered_past_the_ingress(
    pairs: str, application: Running, tmp_path: Path
) -> None:
    async with httpx.AsyncClient(base_url=pairs, timeout=60) as client:

        async def up() -> bool:
            return (await client.get("/readyz")).json().get("middle") == 1

        await until(up)
        assert "middle" in (await client.get("/metrics")).text
        refused = await client.post(
            "/v1/completions", json={"model": "tandem", "prompt": "My secret", "tandem": {"mode": "split"}}
        )
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "prompt_left_device")

        snapshot = await serve.get_deployment_handle("Scheduler", "pairs").snapshot.remote()
        (replica,) = snapshot.pools["middle"]
        assert (replica.model, replica.sessions) == ("target", 0)
        peers = Peers(token=application.token)
        router = Routing(Assigner(collaboration.create("explicit"), lambda: routing.create("jsq"), 8))
        router.see(snapshot)

        async def dial(endpoint: EndpointInfo) -> Engine:
            return await peers.engine(endpoint.address, endpoint.engine)

        big = {"kv_blocks": 512, "block_size": 16, "token_budget": 512}
        parts = Parts.make(family.path("target"), LAYERS, tmp_path, 0.0, big, big)
        executor = Executor(router.assign, Reach(dial), services=Services(outer=parts.outer))
        text = Tokenizer.load(family.path("target"))
        sampling = Sampling(max_tokens=32)
        for question in ("Tell me about the town of Marworth.", "Which river is the longest?"):
            prompt = tuple(text.render_chat([{"role": "user", "content": question}]))
            said = [
                i async for delta in executor.run(Job(1, prompt, sampling, mode="split")) for i in delta.ids
            ]
            assert said == (await parts.answer(prompt, sampling)).ids
        await executor.settled()
        there = await dial(replica)
        stats = await there.stats()
        assert (stats.opened, stats.sessions) == (2, 0)
        await peers.close()
        await parts.close()
