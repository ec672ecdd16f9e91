"""The engines of the cluster keep the engine contract: a device, a remote engine, and both behind a link."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from tandem.cluster.devices.device import Device
from tandem.cluster.devices.model_cache import HeldModel, SharedModel
from tandem.cluster.devices.multi_model import SwitchingDevice
from tandem.cluster.devices.profile import DeviceProfile, load_profile
from tandem.cluster.link.delayed_engine import Delayed
from tandem.cluster.link.latency import LogNormal
from tandem.cluster.link.link import Link, LinkProfile
from tandem.cluster.wire.client import connect
from tandem.cluster.wire.listener import dial_in, serve_engines
from tandem.cluster.wire.peers import Peers
from tandem.cluster.wire.server import EngineHandler
from tandem.cluster.wire.wire import WireSettings
from tandem.engine.base import Engine
from tandem.engine.null.engine import NullEngine
from tandem.engine.text.detokenizer import Spelling
from tests.effort import slow_after
from tests.engine.torch.engines import Engines, tokenizer
from tests.engine_contract import CHECKS, GRAMMATICAL, close_ends_it

PROMPT = [20, 21, 22]
FAST = DeviceProfile(
    name="fast", hardware="none", model="none", source="test",
    prefill_tokens_per_s=1e6, decode_tokens_per_s=1e5, sessions=8,
)  # fmt: skip
QUICK = LinkProfile(rtt_s=0.001, jitter_s=0.0002, up_bytes_per_s=1e7, down_bytes_per_s=1e7)


def null() -> NullEngine:
    return NullEngine(context=2**20)


def several() -> Mapping[str, Engine]:
    """A device's engines with each of two models, the first of which is loaded."""
    models = [
        SharedModel(null, msgspec.structs.replace(null().info, model=name), 0.0, 0.0)
        for name in ("first", "second")
    ]
    return SwitchingDevice(null(), [HeldModel(model, FAST) for model in models]).engines("device")


LOCAL: dict[str, Callable[[], Engine]] = {
    "null": null,
    "native device": lambda: Device(null(), load_profile("native")),
    "emulated device": lambda: Device(null(), FAST),
    "one of a device's models": lambda: several()["device/second"],
    "delayed": lambda: Delayed(null(), LogNormal(median_s=0.002, sigma=0.5)),
}


REMOTE = ["remote", "remote over a link", "remote, link there", "remote device", "device that dialled in"]


@pytest.fixture(params=[*LOCAL, *REMOTE])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    if request.param in LOCAL:
        yield LOCAL[request.param]()
        return
    if request.param == "device that dialled in":
        async with dialled_in(Device(null(), load_profile("native"))) as engine:
            yield engine
        return
    served = Device(null(), FAST) if request.param == "remote device" else null()
    links = {"engine": Link(QUICK)} if request.param == "remote, link there" else {}
    engines = {"engine": served}
    async with serve_engines(engines, handler=partial(EngineHandler, engines, links=links)) as endpoint:
        connection = await connect(endpoint.address)
        yield connection.engine("engine", Link(QUICK) if request.param == "remote over a link" else None)
        await connection.close()


@asynccontextmanager
async def dialled_in(device: Device) -> AsyncIterator[Engine]:
    """A device that has dialled a gateway, as somebody else sees it who has dialled that, too."""
    there: dict[str, Engine] = {}
    settings = WireSettings(resume_s=5)
    async with (
        serve_engines(
            {},
            settings=settings,
            on_connect=lambda connection: there.update(laptop=connection.engine("device")),
        ) as outside,
        serve_engines({}, handler=partial(EngineHandler, there)) as inside,
    ):
        uplink = await dial_in(outside.address, {"device": device}, settings=settings)
        peers = Peers()
        try:
            yield await peers.engine(inside.address, "laptop")
        finally:
            await peers.close()
            await uplink.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_contract(check: Callable[[Engine, list[int]], Awaitable[None]], engine: Engine) -> None:
    await check(engine, PROMPT)


@pytest.mark.parametrize("check", GRAMMATICAL, ids=lambda check: check.__name__)
async def test_contract_of_grammars(
    check: Callable[[Engine, Spelling], Awaitable[None]], tmp_path: Path
) -> None:
    """Run the checks over the wire, at a device with a profile."""
    made = Engines(tmp_path)
    engines: dict[str, Engine] = {"engine": Device(made.start(text=tokenizer()), FAST)}
    async with serve_engines(engines, handler=partial(EngineHandler, engines)) as endpoint:
        connection = await connect(endpoint.address)
        await check(connection.engine("engine"), tokenizer())
        await connection.close()
    await made.close()


@pytest.mark.parametrize("name", slow_after(2, LOCAL))
async def test_close(name: str) -> None:
    await close_ends_it(LOCAL[name], PROMPT, lambda engine: [getattr(engine, "_engine", engine)])
