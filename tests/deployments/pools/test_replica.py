"""Replicas on the wire: one that cannot start ends without an error of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tandem.cluster.wire.client import connect
from tandem.cluster.wire.peers import Peers
from tandem.deployments.pools import replica as replicas
from tandem.deployments.pools.engines import AnySettings, NullSettings, ServiceSettings, TorchSettings
from tandem.deployments.pools.replica import EndpointSettings, EngineEndpoint
from tandem.deployments.request.job import Job
from tandem.deployments.request.timeouts import Limits
from tandem.engine.base import EngineStopped, Sampling
from tandem.engine.core.engine import CoreEngine
from tandem.policies.estimators import overdue
from tests.deployments.faults import PROMPT, World


class Replica(EngineEndpoint):
    """A replica that Serve makes and ends, not Python."""

    def __del__(self) -> None: ...  # type: ignore[override]


async def test_a_replica_that_cannot_start_says_why_and_nothing_else(tmp_path: Path) -> None:
    """Serve ends what it has begun to make."""
    lost = ServiceSettings(
        kind="openai", base_url="http://127.0.0.1:1/v1", model="any", tokenizer=str(tmp_path / "none")
    )
    replica = Replica.__new__(Replica)
    with pytest.raises((OSError, ValueError), match="none"):
        await replica.__init__("verifier", lost, EndpointSettings())  # type: ignore[func-returns-value, misc]
    await EngineEndpoint.__del__(replica)


async def test_it_reports_its_address_until_it_drains() -> None:
    replica = Replica.__new__(Replica)
    await replica.__init__("verifier", NullSettings(kind="null"), EndpointSettings())  # type: ignore[func-returns-value, misc]
    (endpoint,) = await replica.state()
    assert endpoint.address.startswith("127.0.0.1:")
    await EngineEndpoint.__del__(replica)
    assert await replica.state() == []


@asynccontextmanager
async def started(settings: AnySettings) -> AsyncIterator[Replica]:
    replica = Replica.__new__(Replica)
    await replica.__init__("verifier", settings, EndpointSettings())  # type: ignore[func-returns-value, misc]
    yield replica
    await EngineEndpoint.__del__(replica)


def hang(replica: Replica, after: int) -> threading.Event:
    """Have a step of the replica's engine never return, after so many; but when the event is set."""
    engine, goes_on = replica._parts[0].engine, threading.Event()
    assert isinstance(engine, CoreEngine)
    runner, steps = engine._core.runner, iter(range(after))
    compute = runner.run

    def run(*work: Any) -> Any:
        if next(steps, None) is None:
            goes_on.wait()
        return compute(*work)

    runner.run = run  # type: ignore[method-assign]
    return goes_on


@pytest.mark.slow
async def test_an_engine_that_hangs_while_its_process_lives_is_left_and_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Have an engine hang whose wire still answers, and says so."""
    monkeypatch.setattr(overdue, "FLOOR_S", 0.2)
    settings = TorchSettings(model="small", kv_blocks=64, threads=1)
    async with started(settings) as hung, started(settings) as good:
        addresses = [endpoint.address for each in (hung, good) for endpoint in await each.state()]
        connections = [await connect(address) for address in addresses]
        world = World([await each.find("verifier") for each in connections], limits=Limits())
        sampling = Sampling(max_tokens=30, ignore_eos=True)
        answers = []
        for _ in range(3):
            if len(answers) == 1:  # steps have been seen
                goes_on = hang(hung, after=5)
            job = Job(len(answers), PROMPT, sampling, mode="cloud")
            answers.append([i async for delta in world.executor.run(job) for i in delta.ids])
        assert len(answers[0]) == 30
        assert answers[1:] == [answers[0]] * 2
        assert [endpoint.address for endpoint in world.gone] == ["verifier:0"]
        assert await hung.state() == []
        assert len(await good.state()) == 1
        await hung.check_health()
        monkeypatch.setattr(replicas, "HUNG_S", 0.0)
        with pytest.raises(EngineStopped, match="overdue"):
            await hung.check_health()
        await good.check_health()
        goes_on.set()
        async with asyncio.timeout(20):
            while not await hung.state():  # noqa: ASYNC110 (the promise that is tested has no event)
                await asyncio.sleep(0.01)
        await hung.check_health()
        await world.executor.settled()
        for connection in connections:
            await connection.close()


async def test_an_operator_drains_it_and_its_sessions_go_on_elsewhere() -> None:
    settings = NullSettings(kind="null", tokens_per_s=50, context=2048)
    async with started(settings) as drained, started(settings) as other:
        drained._settings = EndpointSettings(drain_s=0.05)
        (here,), (there,) = await drained.state(), await other.state()
        peers = Peers()
        engines = [await peers.engine(each.address, "verifier") for each in (here, there)]
        world = World(engines, limits=Limits())
        job = Job(1, PROMPT, Sampling(max_tokens=20, ignore_eos=True), mode="cloud")
        answer = list[int]()
        async for delta in world.executor.run(job):
            answer += delta.ids
            told = await drained.state(drained={here.name})
            await other.state(drained={here.name})
        assert len(answer) == 20
        assert [each.name for each in told] == [here.name], "it is still there"
        assert [endpoint.address for endpoint in world.gone] == ["verifier:0"]
        await drained.state()
        engine = await peers.engine(here.address, "verifier")
        session = await engine.open([20], Sampling())
        await session.cancel()
        await world.executor.settled()
        await peers.close()
