"""Races that a device drives itself against a cloud behind its gateway, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from tandem.app.device.local_router import LocalRouter
from tandem.deployments.gateway.client import Uplink
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.race.mode import Racing
from tandem.deployments.modes.race.router import RaceBriefing
from tandem.deployments.modes.race.settings import DispatchChoice, MigrationChoice, RaceSettings
from tandem.deployments.request.assignment import EndpointInfo, RoutingRequest
from tandem.deployments.request.job import Job, JobStats, UnknownMode
from tandem.deployments.request.session import Reach
from tandem.deployments.request.tokenlog import Origin
from tandem.engine.base import Engine, EngineError, EngineStopped, Sampling
from tandem.engine.null.engine import NullEngine
from tandem.policies.race.dispatch import BOTH, DEVICE_ONLY
from tests.deployments.faults import PROMPT, Failing, reference
from tests.deployments.gateway.test_client import until
from tests.deployments.gateway.test_connected_devices import gateway, program
from tests.deployments.gateway.test_device_session import CALLER, TARGET, Office
from tests.deployments.modes.race.test_mode import Gate

TOKENS = 24
EXPECTED = reference(PROMPT, TOKENS)
HERE = EndpointInfo("laptop", "", "laptop", device=True)
WANTED = RoutingRequest("race", request=7, prompt_tokens=len(PROMPT), max_tokens=TOKENS)


def office(engine: Engine, budget: float = 1.0) -> Office:
    """A cloud whose verifier has that engine, for a key whose terms say that budget for the server."""
    caller = replace(CALLER, terms=replace(CALLER.terms, budget=budget))
    return Office(caller, engine=engine)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no cloud count as gone that a busy machine keeps silent; its terms come at once."""
    monkeypatch.setattr("tandem.deployments.gateway.client.REGISTER_S", 0.02)
    monkeypatch.setattr("tandem.deployments.gateway.client.QUIET_S", 60.0)


@dataclass
class Laptop:
    """A device's own program."""

    uplink: Uplink
    dialling: asyncio.Task[None]
    router: LocalRouter
    executor: Executor

    async def answer(
        self, then: Callable[[], object] = lambda: None, **wishes: object
    ) -> tuple[list[int], list[Origin], JobStats]:
        """then: called after the first tokens."""
        ids, origins, stats = list[int](), list[Origin](), None
        job = Job(11, PROMPT, Sampling(max_tokens=TOKENS), mode="race", **wishes)
        async for delta in self.executor.run(job):
            ids += delta.ids
            origins += delta.origins
            stats = delta.stats
            then()
        assert stats is not None
        await self.executor.settled()
        return ids, origins, stats


@asynccontextmanager
async def laptop(cloud: Office, own: Engine, **settings: object) -> AsyncIterator[Laptop]:
    """Connected, and told the key's budget."""
    async with gateway(cloud) as there, program(there.address) as (uplink, dialling):
        await until(lambda: uplink.registered is not None)
        await there.devices.check()
        await until(lambda: uplink.registered is not None and uplink.registered.budget is not None)
        router = LocalRouter({"race": RaceSettings(**settings)}, uplink, lambda: HERE)

        async def dial(endpoint: EndpointInfo) -> Engine:
            return own if endpoint.device else await uplink.dial(endpoint)

        executor = Executor(
            router.assign, Reach(dial, reached_s=lambda: uplink.reached_s), report=router.learn
        )
        yield Laptop(uplink, dialling, router, executor)


async def test_the_cloud_is_first_and_the_device_takes_over_in_mid_answer() -> None:
    """Since that decodes for nothing; the cloud has counted its own part."""
    own = Gate(opened=False)
    cloud = office(NullEngine())
    async with laptop(cloud, own) as here:
        ids, origins, stats = await here.answer(own.gate.set)
        assert ids == EXPECTED
        changed = origins.index(Origin.DEVICE)
        assert origins == [Origin.CLOUD] * changed + [Origin.DEVICE] * (TOKENS - changed)
        assert 0 < changed < TOKENS
        assert (stats.mode, stats.device, Racing.of(stats).migrations) == ("race", "laptop", 1)
        assert own.begun > 0
        await until(lambda: bool(cloud.reports))
    assert [wanted.mode for wanted in cloud.asked] == ["cloud"]
    assert [(r.account, r.device) for r in cloud.reports] == [("key-1", "laptop")]
    assert cloud.reports[0].bill.used.server_out >= changed


async def test_the_device_is_first_and_the_cloud_stops() -> None:
    server = Gate(opened=False)
    cloud = office(server)
    own = Gate(opened=False)
    async with laptop(cloud, own) as here:
        running = asyncio.create_task(here.answer())
        await until(lambda: server.begun == own.begun == 1)
        own.gate.set()
        ids, origins, stats = await running
        assert (ids, set(origins)) == (EXPECTED, {Origin.DEVICE})
        assert (stats.mode, stats.used.server_in, stats.used.server_out) == ("race", len(PROMPT), 0)
        counters = await server.stats()
        assert (counters.sessions, counters.cancelled, counters.tokens_generated) == (0, 1, 0)


async def test_it_is_planned_by_the_keys_budget_and_by_what_was_seen_from_here() -> None:
    own = Gate(opened=False)
    async with laptop(office(NullEngine()), own, migration=MigrationChoice(name="never")) as here:
        made = await here.router.assign(WANTED)
        assert isinstance(made.briefing, RaceBriefing)
        assert (made.mode, made.briefing.start, made.briefing.history.ttft.seen) == ("race", BOTH, 0)
        server, device = made.endpoints["server"], made.endpoints["device"]
        assert (server.key, server.rtt_s, device) == (TARGET.key, here.uplink.rtt_s, HERE)
        assert made.briefing.costs.server == made.prices.server
        assert made.prices.server.decode == 10.0, "as the cloud has it"
        _, origins, stats = await here.answer()
        assert (set(origins), Racing.of(stats).migrations) == ({Origin.CLOUD}, 0)
        made = await here.router.assign(replace(WANTED, request=8))
        assert isinstance(made.briefing, RaceBriefing)
        assert made.briefing.history.ttft.seen == 1
    async with laptop(office(NullEngine(), budget=0.0), own) as here:
        made = await here.router.assign(WANTED)
        assert isinstance(made.briefing, RaceBriefing)
        assert made.briefing.start == DEVICE_ONLY


async def test_without_the_cloud_the_device_answers_alone() -> None:
    cloud = office(NullEngine())
    async with laptop(cloud, NullEngine()) as here:
        cloud.refusal = EngineStopped("no verifier is up")
        ids, origins, stats = await here.answer()
        assert (ids, set(origins), stats.mode) == (EXPECTED, {Origin.DEVICE}, "device")
        assert len(cloud.asked) == 1
        here.dialling.cancel()
        await asyncio.wait((here.dialling,))
        ids, _, stats = await here.answer()
        assert (ids, stats.mode, len(cloud.asked)) == (EXPECTED, "device", 1)


async def test_what_the_cloud_refuses_is_refused() -> None:
    cloud = office(NullEngine())
    cloud.refusal = UnknownMode("not with this key")
    async with laptop(cloud, NullEngine()) as here:
        with pytest.raises(EngineError, match="not with this key") as refused:
            await here.answer()
        assert refused.value.code == UnknownMode.code


async def test_where_the_device_has_failed_the_cloud_goes_on() -> None:
    """In the race itself; and alone, where the race could not go on."""
    own = Failing(NullEngine(), "generate", after=3)
    cloud = office(NullEngine())
    async with laptop(cloud, own, dispatch=DispatchChoice(name="device")) as here:
        ids, origins, stats = await here.answer()
        assert (ids, own.fired, stats.mode, stats.replans) == (EXPECTED, 1, "race", 0)
        assert origins == [Origin.DEVICE] * 3 + [Origin.CLOUD] * (TOKENS - 3)
        without = replace(WANTED, lost=(HERE.key,), sent=3)
        made = await here.router.assign(without)
        assert (made.mode, made.endpoints["target"].key) == ("cloud", TARGET.key)
        cloud.refusal = EngineStopped("no verifier is up")
        with pytest.raises(EngineStopped):
            await here.router.assign(without)
