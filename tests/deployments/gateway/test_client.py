"""A device's connection to the gateway, without Ray: dialled again whenever it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest

from tandem.cluster.devices.device import Device
from tandem.cluster.devices.profile import load_profile
from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.wire.client import Connection
from tandem.cluster.wire.frames import Unauthorized
from tandem.cluster.wire.listener import Endpoint, serve_engines
from tandem.cluster.wire.server import EngineHandler
from tandem.cluster.wire.wire import WireSettings
from tandem.deployments.gateway import client
from tandem.deployments.gateway.client import Uplink
from tandem.deployments.gateway.messages import (
    ASSIGN,
    ECHO,
    MIDDLES,
    OVER,
    REGISTER,
    AssignmentMessage,
    Over,
    Registered,
    pack,
    unpack,
)
from tandem.deployments.modes import MODES
from tandem.deployments.modes.speculative.mode import PairBriefing
from tandem.deployments.modes.speculative.pairs import Pairs
from tandem.deployments.request.assignment import Assignment, EndpointInfo, RoutingRequest
from tandem.engine.base import Engine, EngineStopped, NoCapacity, Sampling, SplitInfo
from tandem.engine.null.engine import NullEngine
from tandem.policies.cost import Used
from tandem.policies.speculation.window import StaticWindow
from tests.cluster.proxy import proxy_to

TARGET = EndpointInfo("verifier 1", "10.0.0.1:1", "verifier", rtt_s=0.0)
LAPTOP = EndpointInfo("laptop", "10.0.0.2:1", "laptop", rtt_s=0.5, device=True)
PAIR = Pairs(StaticWindow).of(LAPTOP, TARGET)
MADE = Assignment(
    "speculative",
    {"target": TARGET, "device": LAPTOP},
    "laptop",
    briefing=PairBriefing(0.5, 8, PAIR.snapshot()),
    replaceable=frozenset({"device"}),
)


MIDDLE = SplitInfo("a1", 2, 12, 512)
MODEL = "org/second"
"""The cloud's model that the device wants."""


class Registry(EngineHandler):
    """The gateway of these tests."""

    heard: ClassVar[list[DeviceRecord]] = []
    over: ClassVar[list[Over]] = []
    refusing: ClassVar[bool] = False
    deaf: ClassVar[bool] = False
    connected: ClassVar[list[Connection]] = []

    def __init__(self, engines: Mapping[str, Engine], connection: Connection) -> None:
        super().__init__(engines, connection)
        self.connected.append(connection)

    async def answer(self, method: str, body: bytes) -> bytes:
        if method == REGISTER:
            self.heard.append(unpack(body, DeviceRecord))
            return pack(Registered("laptop", "key-1"))
        if method == OVER:
            self.over.append(unpack(body, Over))
            if self.deaf:
                await asyncio.Event().wait()
            return pack(None)
        if method == MIDDLES:
            assert unpack(body, str) == MODEL
            return pack((MIDDLE,))
        if method == ECHO:
            return body
        assert method == ASSIGN
        if self.refusing:
            raise NoCapacity("all are full", 1.0)
        wanted = RoutingRequest("speculative", lost=("a", "b"), budget=0.25, model=MODEL)
        assert replace(unpack(body, RoutingRequest), sent=0) == wanted
        return pack(AssignmentMessage.of(MADE))


@asynccontextmanager
async def gateway(
    port: int = 0, on_connect: Callable[[Connection], None] | None = None, token: str = "key"
) -> AsyncIterator[Endpoint]:
    served = {TARGET.key: NullEngine()}
    async with serve_engines(
        {},
        f"127.0.0.1:{port}",
        auth=token,
        settings=WireSettings(resume_s=0.5),
        handler=partial(Registry, served),
        on_connect=on_connect,
    ) as endpoint:
        yield endpoint


@asynccontextmanager
async def uplinked(address: str, key: str = "key") -> AsyncIterator[tuple[Uplink, asyncio.Task[None]]]:
    device = Device(NullEngine(), load_profile("native"))
    settings = WireSettings(resume_s=0.5, timeout_s=5, hello_s=2)
    uplink = Uplink(address, key, device, lambda: device.record(""), settings=settings, model=MODEL)
    running = asyncio.get_running_loop().create_task(uplink.run())
    yield uplink, running
    running.cancel()
    await asyncio.wait((running,))


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not met():  # noqa: ASYNC110 (the promise that is tested has no event)
            await asyncio.sleep(0.01)


async def test_it_says_how_it_is_and_is_told_its_name() -> None:
    Registry.heard.clear()
    async with gateway() as there, uplinked(there.address) as (uplink, _):
        await until(lambda: len(Registry.heard) > 1)
        assert uplink.registered == Registered("laptop", "key-1")
        assert Registry.heard[0].model == NullEngine().info.model
        assert uplink.up


async def test_an_assignment_arrives_as_the_router_made_it() -> None:
    """But that the device itself is here, and the rest beyond its link."""
    async with gateway() as there, uplinked(there.address) as (uplink, _):
        await until(lambda: uplink.registered is not None)
        made = await uplink.assign(RoutingRequest("speculative", lost=("a", "b"), budget=0.25))
        assert (made.mode, made.device, made.replaceable) == ("speculative", "laptop", {"device"})
        assert made.prices == MADE.prices
        assert made.briefing == MADE.briefing
        device, target = made.endpoints["device"], made.endpoints["target"]
        assert (device.key, device.rtt_s) == (LAPTOP.key, 0.0)
        assert (target.key, target.rtt_s) == (TARGET.key, uplink.rtt_s)
        engine = await uplink.dial(target)
        session = await engine.open([1, 2], Sampling(max_tokens=3, ignore_eos=True))
        assert len([i async for tokens in session.generate() for i in tokens.ids]) == 3


async def test_the_gateway_hears_of_the_end_of_what_it_has_let_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where nothing came of it, and where the connection is just away; and of nothing else."""
    monkeypatch.setattr(Registry, "over", [])
    wanted = RoutingRequest("speculative", lost=("a", "b"), budget=0.25)
    async with gateway() as there, proxy_to(there.address) as proxy, uplinked(proxy.address) as (uplink, _):
        await until(lambda: uplink.registered is not None)
        uplink.over(Over(5, Used(), 0.0))
        await uplink.assign(wanted)
        proxy.cut("reset")
        uplink.over(Over(wanted.request, Used(device_in=3), 1.0))
        uplink.over(Over(wanted.request, Used(device_in=3), 1.0))
        await until(lambda: bool(Registry.over))
        monkeypatch.setattr(Registry, "refusing", True)
        with pytest.raises(NoCapacity):
            await uplink.assign(wanted)
        await until(lambda: len(Registry.over) > 1)
    assert proxy.cuts
    assert Registry.over == [Over(0, Used(device_in=3), 1.0), Over(0, Used(), 0.0, assigned=False)]


async def test_half_an_answer_waits_for_the_gateways_successor_for_long_and_a_new_one_for_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = RoutingRequest("speculative", lost=("a", "b"), budget=0.25, sent=3)
    new = replace(begun, sent=0)
    async with gateway() as first, proxy_to(first.address) as proxy, uplinked(proxy.address) as (uplink, _):
        await until(lambda: uplink.registered is not None)

        async def lose() -> None:
            Registry.connected[-1].fail(EngineStopped("this gateway is killed"))
            assert uplink._connection is not None
            await uplink._connection.closed

        monkeypatch.setattr(client, "WAIT_S", 20.0)  # in real time, on a machine that may be busy
        await lose()
        assert (await uplink.assign(new)).mode == MADE.mode
        monkeypatch.setattr(client, "WAIT_S", 0.05)
        await lose()
        with pytest.raises(EngineStopped, match="does not (answer|come back)"):
            await uplink.assign(new)
        assert (await uplink.assign(begun)).mode == MADE.mode


async def test_the_gateways_successor_hears_of_an_end_that_nobody_has_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Registry, "over", [])
    said = Over(0, Used(device_in=3), 1.0)
    async with gateway() as there, uplinked(there.address) as (uplink, _):
        await until(lambda: uplink.registered is not None)
        await uplink.assign(RoutingRequest("speculative", lost=("a", "b"), budget=0.25))
        monkeypatch.setattr(Registry, "deaf", True)
        uplink.over(said)
        await until(lambda: bool(Registry.over))
        monkeypatch.setattr(Registry, "deaf", False)
        Registry.connected[-1].fail(EngineStopped("this gateway is killed"))
        await until(lambda: len(Registry.over) > 1)
        await until(lambda: not uplink._over)
    assert Registry.over == [said, said]


async def test_what_ends_with_the_program_is_not_told() -> None:
    """Requests that still wait for an assignment are cancelled with it."""
    async with uplinked("127.0.0.1:1") as (uplink, running):
        asking = asyncio.ensure_future(uplink.assign(RoutingRequest("speculative", sent=3)))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait((running,))
        asking.cancel()
        await asyncio.wait((asking,))
        assert asking.cancelled()
        assert not uplink._over


@pytest.mark.parametrize("mode", [name for name, mode in MODES.items() if mode.afar])
def test_briefings_travel(mode: str) -> None:
    briefing = MADE.briefing if MODES[mode].briefing is PairBriefing else None
    assert (briefing is None) == (MODES[mode].briefing is None)
    made = Assignment(mode, {}, briefing=briefing)
    assert unpack(pack(AssignmentMessage.of(made)), AssignmentMessage).assignment({}) == made


async def test_it_dials_again_when_the_gateway_has_gone() -> None:
    async with (
        gateway() as there,
        proxy_to(there.address) as proxy,
        uplinked(proxy.address) as (uplink, running),
    ):
        await until(lambda: uplink.up)
        proxy.refusing = True
        proxy.cut("reset")
        await until(lambda: not uplink.up)
        with pytest.raises(EngineStopped):
            await uplink.assign(RoutingRequest("speculative"))  # gone for longer than resume_s
        proxy.refusing = False
        uplink.registered = None
        await until(lambda: uplink.registered is not None)
        assert uplink.up
        assert not running.done()


async def test_a_gateway_that_comes_later_is_found() -> None:
    async with gateway() as there:
        address = there.address
    port = int(address.rpartition(":")[2])
    async with uplinked(address) as (uplink, _):
        with pytest.raises(EngineStopped, match="no connection to the cloud"):
            await uplink.account()
        async with gateway(port):
            await until(lambda: uplink.up)


async def test_a_key_that_is_refused_ends_it() -> None:
    async with gateway() as there, uplinked(there.address, "another key") as (uplink, running):
        await asyncio.wait((running,), timeout=20)
        with pytest.raises(Unauthorized):
            running.result()
        assert not uplink.up


async def test_what_the_cloud_has_and_how_far_it_is() -> None:
    async with gateway() as there, uplinked(there.address) as (uplink, _):
        await asyncio.wait_for(uplink.connected(), 20)
        assert uplink.up
        assert await uplink.middles() == (MIDDLE,)
        assert 0 < await uplink.echo_s(1000) < 20
    async with uplinked("127.0.0.1:1") as (nowhere, _):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(nowhere.connected(), 0.05)
        with pytest.raises(EngineStopped):
            await nowhere.middles()
