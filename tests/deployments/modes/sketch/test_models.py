"""Mode sketch on a device that holds three models of the embedded family, in its host and over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from tandem.cluster.devices.host import Host, HostedDevice
from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.wire.peers import Peers
from tandem.deployments.modes.base import Services
from tandem.deployments.modes.sketch.mode import Sketched
from tandem.deployments.modes.sketch.settings import SketchOptions, SketchSettings
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import Job, JobStats
from tandem.deployments.request.timeouts import Limits
from tandem.engine import family
from tandem.engine.base import Engine, Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.sketch.base import Question
from tandem.engine.sketch.marked import MarkedFormat
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.engine import load
from tandem.policies.reader import stall_timeout
from tandem.training.family import prompts
from tests.deployments.faults import World

TEXT = Tokenizer.load(family.path("target"))
ASKED = "Tell me about the town of Marworth."
EAGER = SketchSettings(
    questions="all", sketching={"name": "always", "parameters": {"shortest": 20}}, within=0.0
)
LOAD_S = 3600.0
"""Loading time reported to the router: a switch is worth it only if an answer cannot come otherwise, however slow the
machine is (switches for time: tests/policies/sketch/test_selection.py)."""


class Laptop(World):
    """A target and a device host with a laptop."""

    def __init__(self, target: Engine, peers: Peers) -> None:
        services = Services(format=MarkedFormat(TEXT))
        super().__init__([target], limits=Limits(), services=services, sketch=EAGER)
        self._peers = peers
        self._registered = asyncio.Condition()

    async def register(self, records: list[DeviceRecord]) -> None:
        async with self._registered:
            devices = {
                record.name: msgspec.structs.replace(
                    record, models=[msgspec.structs.replace(model, load_s=LOAD_S) for model in record.models]
                )
                for record in records
            }
            self.snapshot = replace(self.snapshot, devices=devices)
            self.router.see(self.snapshot)
            self._registered.notify_all()

    async def told(self, what: Callable[[DeviceRecord], bool]) -> DeviceRecord:
        """Return the laptop's record, once it satisfies `what`."""
        async with asyncio.timeout(60), self._registered:
            await self._registered.wait_for(lambda: any(map(what, self.router.assigner.devices.values())))
            return self.router.assigner.devices["laptop"]

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        if endpoint.device:
            return await self._peers.engine(endpoint.address, endpoint.engine)
        return await super()._dial(endpoint)

    async def answer(
        self, mode: str = "sketch", device: str | None = None, min_quality: float = 0.0
    ) -> JobStats:
        prompt = tuple(TEXT.encode(prompts.answer_prompt(ASKED)))
        job = Job(
            11, prompt, Sampling(max_tokens=300), question=Question(prompt, text=ASKED),
            mode=mode, device=device, options=(SketchOptions(min_quality=min_quality),),
        )  # fmt: skip
        deltas = [delta async for delta in self.executor.run(job)]
        await self.executor.settled()
        stats = deltas[-1].stats
        assert stats is not None
        return stats


@pytest.fixture
async def laptop(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Laptop]:
    monkeypatch.setattr(stall_timeout, "FLOOR_S", 60.0)  # a busy machine is no device that has stalled
    target = load(family.path("target"), EngineConfig(kv_blocks=256), threads=1)
    peers = Peers()
    world = Laptop(target, peers)
    makes = [
        partial(load, family.path(name), EngineConfig(kv_blocks=256), threads=1)
        for name in ("tiny", "small", "medium")
    ]
    host = Host(makes, [HostedDevice("laptop")], world.register, heartbeat_s=0.05)
    running = asyncio.create_task(host.run())
    yield world
    await peers.close()
    running.cancel()
    await asyncio.wait((running,))
    await target.close()


async def test_an_ability_that_only_another_model_has_brings_that_model(laptop: Laptop) -> None:
    record = await laptop.told(lambda record: bool(record.models))
    assert (record.model, [model.name for model in record.models]) == ("tiny", ["tiny", "small", "medium"])
    assert all(model.decode_token_s > 0 for model in record.models)

    stats = await laptop.answer()
    assert set(stats.by_origin) == {"cloud", "expansion"}, "the target begins"
    assert (await laptop.told(lambda record: not record.sessions)).model == "tiny", "nothing asks for more"

    stats = await laptop.answer(min_quality=0.99)
    assert set(stats.by_origin) == {"cloud", "expansion"}, "the target begins"
    assert Sketched.of(stats).moved == 0
    record = await laptop.told(lambda record: record.model == "medium")
    assert laptop.router.modes["sketch"].idle

    stats = await laptop.answer(mode="device", device="laptop")
    assert set(stats.by_origin) == {"device"}
    assert (await laptop.told(lambda record: not record.sessions)).model == "medium", "whatever is loaded"


async def test_answers_that_need_different_models_at_once_both_come(laptop: Laptop) -> None:
    await laptop.told(lambda record: bool(record.models))
    both = await asyncio.gather(
        laptop.answer(), laptop.answer(min_quality=0.99), laptop.answer(min_quality=0.9)
    )
    assert [Sketched.of(stats).sketches - Sketched.of(stats).finished for stats in both] == [1, 1, 1]
    assert sum(Sketched.of(stats).moved for stats in both) == 0
