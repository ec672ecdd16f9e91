"""Devices that dial in, without Ray: one program for each key, as long as it answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tandem.cluster.devices.device import Device
from tandem.cluster.devices.profile import load_profile
from tandem.cluster.wire.client import Connection
from tandem.cluster.wire.frames import AlreadyConnected, Unauthorized
from tandem.cluster.wire.listener import dial_in, serve_engines
from tandem.cluster.wire.wire import WireSettings
from tandem.deployments.access.client.caller_cache import Callers
from tandem.deployments.gateway.client import Uplink
from tandem.deployments.gateway.connected_devices import ConnectedDevices
from tandem.deployments.gateway.messages import ENGINE
from tandem.engine.base import Engine, EngineStopped, Sampling
from tandem.engine.null.engine import NullEngine
from tests.cluster.proxy import proxy_to
from tests.deployments.gateway.test_client import until
from tests.deployments.gateway.test_device_session import KEY, Office

SETTINGS = WireSettings(resume_s=30.0, timeout_s=10.0, hello_s=4.0)
ANSWER_S = 0.5
FOREVER = Sampling(max_tokens=2**31, ignore_eos=True)


@dataclass
class Gateway:
    """address: where devices dial in. gone: who is. callers: whose keys there are."""

    devices: ConnectedDevices
    gone: list[str]
    callers: Callers
    address: str = ""
    arrivals: list[Connection] = field(default_factory=list)

    @property
    def engine(self) -> Engine:
        """The one that the cloud reaches as the device's."""
        return self.devices.engines["laptop"]

    def arrived(self, connection: Connection) -> None:
        self.arrivals.append(connection)
        self.devices.arrived(connection)


@asynccontextmanager
async def gateway(office: Office | None = None) -> AsyncIterator[Gateway]:
    office = office or Office()
    cloud, gone, callers = office.cloud(), list[str](), Callers(office.find)
    here = Gateway(ConnectedDevices(callers, cloud, gone.append, ANSWER_S), gone, callers)
    async with serve_engines(
        {},
        auth=here.devices.admit,
        handler=here.devices.greet,
        on_connect=here.arrived,
        settings=SETTINGS,
    ) as endpoint:
        here.address = endpoint.address
        yield here
    cloud.entrance.close()


@asynccontextmanager
async def program(address: str) -> AsyncIterator[tuple[Uplink, asyncio.Task[None]]]:
    """A device's, or another one that shows the same key."""
    device = Device(NullEngine(context=2**40), load_profile("native"))
    uplink = Uplink(address, KEY, device, lambda: device.record(""), settings=SETTINGS)
    running = asyncio.get_running_loop().create_task(uplink.run())
    try:
        yield uplink, running
    finally:
        running.cancel()
        await asyncio.wait((running,))


async def dialled(address: str, instance: bytes) -> Connection:
    return await dial_in(
        address, {ENGINE: NullEngine(context=2**40)}, token=KEY, settings=SETTINGS, instance=instance
    )


async def test_another_program_with_the_key_of_one_that_answers_is_refused() -> None:
    """Refuse it for good, without effect on the first."""
    async with gateway() as there, program(there.address) as (first, running):
        await until(lambda: first.registered is not None)
        session = await there.engine.open([20], FOREVER)
        async with program(there.address) as (second, refused):
            await asyncio.wait((refused,), timeout=20)
            with pytest.raises(AlreadyConnected, match="tandem keys device make"):
                refused.result()
            assert not second.up
        await anext(session.generate())
        assert first.up
        assert not running.done()
        assert len(there.arrivals) == 1
        assert not there.gone


async def test_it_is_told_its_name_when_the_router_knows_it() -> None:
    """And counts the cloud as there no sooner: it would be asked for before it could be found."""
    office = Office()
    office.router_knows.clear()
    async with gateway(office) as there, program(there.address) as (uplink, _):
        await until(lambda: bool(office.registered))
        await there.engine.stats()
        assert (uplink.up, uplink.registered) == (False, None)
        office.router_knows.set()
        await asyncio.wait_for(uplink.connected(), 20)
        assert uplink.up
        await until(lambda: there.devices.engines != {})
        (record,) = office.registered
        assert (record.name, record.dialled_in) == ("laptop", True)


async def test_of_two_that_come_at_once_one_is_let_in() -> None:
    async with (
        gateway() as there,
        program(there.address) as (_, one),
        program(there.address) as (_, other),
    ):
        await asyncio.wait((one, other), timeout=20, return_when=asyncio.FIRST_COMPLETED)
        (ended,) = [task for task in (one, other) if task.done()]
        with pytest.raises(AlreadyConnected):
            ended.result()
        await until(lambda: "laptop" in there.devices.engines)
        await there.engine.stats()


@pytest.mark.parametrize("how", ["reset", "silent"])
async def test_one_that_does_not_answer_makes_room(how: str) -> None:
    """And is told so, should it come back after all."""
    async with (
        gateway() as there,
        proxy_to(there.address) as proxy,
        program(proxy.address) as (first, running),
    ):
        await until(lambda: first.registered is not None)
        proxy.refusing = True
        proxy.cut(how)
        async with program(there.address) as (second, _):
            await until(lambda: second.registered is not None)
            assert proxy.cuts
            assert there.gone == ["laptop"]
            await there.engine.stats()
            proxy.refusing = False
            proxy.cut("reset")
            await asyncio.wait((running,), timeout=20)
            with pytest.raises(AlreadyConnected):
                running.result()
            assert second.up
            await there.engine.stats()


async def test_it_resumes_while_the_gateway_believes_in_the_connection_before() -> None:
    """The link has gone silent, the device has another one, and its session goes on."""
    async with gateway() as there, proxy_to(there.address) as proxy, program(proxy.address) as (uplink, _):
        await until(lambda: uplink.registered is not None)
        session = await there.engine.open([20], FOREVER)
        stream = session.generate()
        await anext(stream)
        (accepted,) = there.arrivals
        connection = uplink._connection
        assert connection is not None
        proxy.cut("silent")
        assert not accepted.away, "nobody has told the gateway"
        returned = asyncio.Event()
        connection.on_return.append(returned.set)
        connection.part("its network has changed")
        await asyncio.wait_for(returned.wait(), 20)
        for _ in range(3):
            await asyncio.wait_for(anext(stream), 20)
        assert proxy.cuts == 1
        assert there.arrivals == [accepted]
        assert not there.gone
        await session.cancel()


async def test_a_device_that_has_dialled_another_gateway_is_let_go() -> None:
    async with gateway() as there:
        before = await dialled(there.address, b"instance")
        await until(lambda: "laptop" in there.devices.engines)
        there.devices.moved(["tablet", "laptop"])
        assert not there.devices.engines
        await before.finished
        assert "another gateway" in str(before.reason)
        assert there.gone == ["laptop"]


async def test_the_same_program_takes_its_place_anew_at_once() -> None:
    """Though the connection that it has given up still answers, as far as the gateway can see."""
    async with gateway() as there:
        before = await dialled(there.address, b"instance")
        await until(lambda: "laptop" in there.devices.engines)
        session = await there.engine.open([20], FOREVER)
        anew = await dialled(there.address, b"instance")
        await until(lambda: len(there.arrivals) == 2)
        with pytest.raises(EngineStopped):
            await anext(session.generate())
        await there.engine.stats()
        await before.finished
        assert before.reason == "the device has dialled in anew"
        with pytest.raises(AlreadyConnected):
            await dialled(there.address, b"another")
        await anew.close()
        await until(lambda: there.gone == ["laptop"])
        await (await dialled(there.address, b"another")).close()


async def test_a_device_stays_listed_while_nobody_says_whether_its_key_holds() -> None:
    """And is sent away as soon as it is known that it does not."""
    office = Office()
    async with gateway(office) as there, program(there.address) as (uplink, running):
        await until(lambda: uplink.up)
        office.answers.clear()
        there.callers.forget()
        checking = asyncio.create_task(there.devices.check())
        await asyncio.sleep(0.05)
        assert not checking.done()
        assert [record.name for record in there.devices.records("10.0.0.1:1")] == ["laptop"]
        office.caller = None
        office.answers.set()
        await checking
        await asyncio.wait((running,), timeout=20)
        with pytest.raises(Unauthorized):
            running.result()
        assert not there.devices.records("10.0.0.1:1")


async def test_a_stopped_device_works_for_nobody_until_it_is_started() -> None:
    async with gateway() as here, program(here.address):
        await until(lambda: "laptop" in here.devices.engines)
        session = await here.engine.open([20], FOREVER)
        here.devices.obey(frozenset({"laptop"}))
        assert here.devices.engines == {}
        with pytest.raises(EngineStopped):
            await session.verify([])
        await until(lambda: len(here.arrivals) == 2)  # it dials in again, for its own requests
        assert here.devices.engines == {}
        assert here.devices.records("") == []
        here.devices.obey(frozenset())
        session = await here.engine.open([20], FOREVER)
        await session.cancel()
