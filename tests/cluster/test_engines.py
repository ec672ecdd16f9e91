"""The engines of the cluster keep the engine contract: a device, a remote engine, and both behind a link."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cluster.client import connect
from cluster.delayed import Delayed
from cluster.device import Device
from cluster.endpoint import serve_engines
from cluster.latency import LogNormal
from cluster.link import Link, LinkProfile
from cluster.profile import DeviceProfile, load_profile
from engine.base import Engine
from engine.null_engine import NullEngine
from tests.engine_contract import CHECKS, close_stops_it

PROMPT = [20, 21, 22]
FAST = DeviceProfile(
    name="fast", hardware="none", model="none", source="test",
    prefill_tokens_per_s=1e6, decode_tokens_per_s=1e5, sessions=8,
)  # fmt: skip
QUICK = LinkProfile(rtt_s=0.001, jitter_s=0.0002, up_bytes_per_s=1e7, down_bytes_per_s=1e7)


def null() -> NullEngine:
    return NullEngine(context=2**20)


LOCAL: dict[str, Callable[[], Engine]] = {
    "null": null,
    "native device": lambda: Device(null(), load_profile("native")),
    "emulated device": lambda: Device(null(), FAST),
    "delayed": lambda: Delayed(null(), LogNormal(median_s=0.002, sigma=0.5)),
}


@pytest.fixture(params=[*LOCAL, "remote", "remote over a link", "remote, link there", "remote device"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    if request.param in LOCAL:
        yield LOCAL[request.param]()
        return
    served = Device(null(), FAST) if request.param == "remote device" else null()
    links = {"engine": Link(QUICK)} if request.param == "remote, link there" else {}
    async with serve_engines({"engine": served}, links=links) as endpoint:
        connection = await connect(endpoint.address)
        yield connection.engine("engine", Link(QUICK) if request.param == "remote over a link" else None)
        await connection.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_contract(check: Callable[[Engine, list[int]], Awaitable[None]], engine: Engine) -> None:
    await check(engine, PROMPT)


@pytest.mark.parametrize("name", LOCAL)
async def test_close(name: str) -> None:
    await close_stops_it(LOCAL[name](), PROMPT)
