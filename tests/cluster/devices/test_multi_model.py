"""A device with several models: one is loaded at a time, and nobody's work is cut for another's."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.cluster.devices.model_cache import HeldModel, SharedModel
from tandem.cluster.devices.multi_model import SwitchingDevice
from tandem.cluster.devices.profile import DeviceProfile, load_profile
from tandem.engine.base import Engine, EngineInfo, EngineStopped, NoCapacity, Sampling, Session
from tandem.engine.core.engine import CoreEngine
from tandem.engine.null.engine import NullEngine
from tandem.engine.torch.model import Model
from tests.engine.torch.engines import Engines, runner
from tests.engine_contract import by_reference_counting
from tests.virtual import in_virtual_time, now_s

TWELVE = Sampling(max_tokens=12, ignore_eos=True)
NAMES = ("tiny", "small", "medium")


class Held:
    """A model that notes when it is loaded. broken: how often loading fails; held: it is in memory."""

    token_s = 0.0

    def __init__(self, name: str, load_s: float = 4.0, decode: float = 10.0, power_w: float = 1.0) -> None:
        self.engine = NullEngine()
        self.engine.info = msgspec.structs.replace(self.engine.info, model=name)
        self.speed = DeviceProfile(
            name="t", hardware="t", model=name, source="t", load_s=load_s, sessions=2, batch=2, power_w=power_w,
            prefill_tokens_per_s=1e6, decode_tokens_per_s=decode,
        )  # fmt: skip
        self.load_s, self.broken = load_s, 0
        self.held = False
        self.loaded = 0

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    async def load(self) -> Engine:
        if self.broken:
            self.broken -= 1
            raise OSError("no such file")
        self.held = True
        self.loaded += 1
        return self.engine

    async def unload(self) -> None:
        self.held = False


class Holding(SwitchingDevice):
    """One that has begun with the first. engines: by model."""

    def __init__(self, models: Sequence[Held]) -> None:
        super().__init__(models[0].engine, models)
        models[0].held = True
        self.by_model = {name.partition("/")[2]: engine for name, engine in self.engines("d").items()}


def holding(**more: Any) -> tuple[Holding, list[Held]]:
    models = [Held(name, **more) for name in NAMES]
    return Holding(models), models


async def answer(engine: Engine) -> int:
    session = await engine.open([20], TWELVE)
    tokens = len(await drained(session))
    await session.cancel()
    return tokens


async def drained(session: Session) -> list[int]:
    return [i async for tokens in session.generate() for i in tokens.ids]


@in_virtual_time
async def test_a_switch_takes_its_time_and_only_one_model_is_held() -> None:
    device, models = holding()
    assert set(device.engines("d")) == {"d/tiny", "d/small", "d/medium"}
    assert await answer(device.by_model["tiny"]) == 12
    assert now_s() == pytest.approx(1.2, abs=1e-3), "it was there"
    assert await answer(device.by_model["medium"]) == 12
    assert now_s() == pytest.approx(1.2 + 4.0 + 1.2, abs=1e-3)
    assert [model.held for model in models] == [False, False, True]
    assert await answer(device) == 12, "with the one that is loaded"
    assert sum(model.loaded for model in models) == 1


async def test_weights_are_freed_before_the_next_are_loaded(tmp_path: Path) -> None:
    there: list[int] = []  # at each load, weights of models that were loaded before
    weights: list[weakref.ref[Model]] = []

    def make(name: str) -> CoreEngine:
        there.append(sum(each() is not None for each in weights))
        engine = Engines(tmp_path).start()
        engine.info = msgspec.structs.replace(engine.info, model=name)
        weights.append(weakref.ref(runner(engine).model))
        return engine

    with by_reference_counting():
        native = load_profile("native")
        info = NullEngine().info
        shared = [
            SharedModel(partial(make, name), msgspec.structs.replace(info, model=name), 0.0, 0.0)
            for name in NAMES
        ]
        models = [HeldModel(model, native) for model in shared]
        device = SwitchingDevice(await models[0].load(), models)
        engines = device.engines("d")
        for name in ("tiny", "small", "tiny"):
            assert await answer(engines[f"d/{name}"]) == 12
        await device.close()
        await models[0].unload()
    assert there == [0, 0, 0]


@in_virtual_time
async def test_it_says_what_it_holds_and_what_loading_takes() -> None:
    device, models = holding()
    models[1].load_s = 5.0  # measured, and longer than the profile's
    record = device.record("d", "here")
    assert (record.model, record.capacity) == ("tiny", 2)
    assert [(model.name, model.load_s, model.decode_token_s) for model in record.models] == [
        ("tiny", 4.0, 0.1), ("small", 5.0, 0.1), ("medium", 4.0, 0.1),
    ]  # fmt: skip
    await answer(device.by_model["small"])
    record = device.record("d", "here")
    assert record.model == "small"
    assert record.models[1].load_s == pytest.approx(4.0), "as it has just taken"


@in_virtual_time
async def test_what_it_works_on_is_finished_first_and_what_comes_meanwhile_waits_its_turn() -> None:
    device, _ = holding()
    tiny, small = device.by_model["tiny"], device.by_model["small"]
    order: list[str] = []

    async def one(engine: Engine, name: str) -> None:
        assert await answer(engine) == 12
        order.append(name)

    running = [asyncio.ensure_future(one(tiny, "first")), asyncio.ensure_future(one(tiny, "beside it"))]
    await asyncio.sleep(0.5)
    running += [asyncio.ensure_future(one(small, "another model"))]
    await asyncio.sleep(0.1)
    running += [asyncio.ensure_future(one(tiny, "back"))]
    await asyncio.gather(*running)
    assert order == ["first", "beside it", "another model", "back"]
    beside_s = 1.2 + 0.1  # the second prompt is taken in after the first one's first token
    assert now_s() == pytest.approx(beside_s + 4 + 1.2 + 4 + 1.2, abs=1e-2)


@in_virtual_time
async def test_who_goes_while_it_loads_leaves_a_device_that_serves_on() -> None:
    device, models = holding()
    asking = asyncio.ensure_future(device.by_model["small"].open([20], TWELVE))
    await asyncio.sleep(1.0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await answer(device.by_model["tiny"]) == 12
    assert now_s() == pytest.approx(4 + 4 + 1.2, abs=1e-2), "what was begun is ended, then it switches back"
    assert [model.held for model in models] == [True, False, False]
    assert device.sessions == 0


@in_virtual_time
async def test_who_goes_while_it_waits_for_the_others_has_changed_nothing() -> None:
    device, models = holding()
    session = await device.by_model["tiny"].open([20], TWELVE)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await device.by_model["small"].open([20], TWELVE)
    assert len(await drained(session)) == 12
    await session.cancel()
    assert await answer(device.by_model["tiny"]) == 12
    assert not models[1].loaded


@in_virtual_time
async def test_a_model_that_cannot_be_loaded_is_refused_and_the_others_serve_on() -> None:
    device, models = holding()
    models[1].broken = 1
    with pytest.raises(EngineStopped, match="cannot load small: no such file"):
        await device.by_model["small"].open([20], TWELVE)
    assert await answer(device.by_model["tiny"]) == 12
    assert await answer(device.by_model["small"]) == 12


@in_virtual_time
async def test_a_device_that_closes_leaves_nobody_waiting() -> None:
    device, _ = holding()
    session = await device.by_model["tiny"].open([20], TWELVE)
    waiting = asyncio.ensure_future(device.by_model["small"].open([20], TWELVE))
    await asyncio.sleep(0.1)
    await device.close()
    with pytest.raises(EngineStopped):
        await waiting
    with pytest.raises(EngineStopped):
        await drained(session)


@in_virtual_time
async def test_each_models_limits_and_joules_are_its_own() -> None:
    models = [Held("tiny", power_w=1.0), Held("small", power_w=3.0)]
    device = Holding(models)
    await answer(device.by_model["tiny"])
    await answer(device.by_model["small"])
    assert device.energy_j == pytest.approx(1.2 * 1 + 1.2 * 3, abs=1e-3)
    sessions = [await device.by_model["small"].open([20], TWELVE) for _ in range(2)]
    with pytest.raises(NoCapacity):
        await device.by_model["small"].open([20], TWELVE)
    for session in sessions:
        await session.cancel()


def test_models_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="must differ: tiny, tiny"):
        Holding([Held("tiny"), Held("tiny")])
