from __future__ import annotations

import asyncio
from functools import partial

import msgspec
import pytest
import ray

from tandem.cluster.devices.host import DeviceHost, Host, HostedDevice
from tandem.cluster.devices.model_cache import SharedModel
from tandem.cluster.devices.orders import NO_ORDERS, DeviceOrders, LinkOrder, Registration
from tandem.cluster.devices.profile import UnknownProfile
from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.link.link import LinkProfile
from tandem.cluster.link.state import LinkState
from tandem.cluster.wire.client import connect
from tandem.engine.base import EngineStopped, Sampling
from tandem.engine.null.engine import NullEngine

DEVICES = [
    HostedDevice("laptop"),
    HostedDevice("phone", "xiaomi14-qwen05b", LinkProfile(rtt_s=0.002)),
]


async def test_serves_and_registers() -> None:
    registered: asyncio.Queue[list[DeviceRecord]] = asyncio.Queue()
    host = Host([NullEngine], DEVICES, registered.put, heartbeat_s=0.01)
    running = asyncio.create_task(host.run())
    laptop, phone = await registered.get()
    assert (laptop.name, laptop.emulated, laptop.rtt_s) == ("laptop", False, 0.0)
    assert (phone.profile, phone.emulated, phone.battery, phone.rtt_s) == (
        "xiaomi14-qwen05b", True, 1.0, 0.002,
    )  # fmt: skip
    connection = await connect(phone.address)
    assert set(connection.peer_engines) == {"laptop", "phone"}
    await connection.engine("phone").open([20], Sampling())
    while (await registered.get())[1].sessions == 0:  # a later heartbeat tells of it
        pass
    await connection.close()
    while (await registered.get())[1].sessions == 1:
        pass
    running.cancel()
    await asyncio.wait((running,))


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
async def test_registers_an_address_that_others_can_dial(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listening on every address, it is reached at this node's."""
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.2")
    registered: asyncio.Queue[list[DeviceRecord]] = asyncio.Queue()
    devices = Host([NullEngine], DEVICES, registered.put, host=host, token="t")
    running = asyncio.create_task(devices.run())
    address = (await registered.get())[0].address
    assert address.startswith("127.0.0.2:" if host == "0.0.0.0" else "127.0.0.1:")
    connection = await connect(address, token="t")
    await connection.engine("laptop").open([20], Sampling())
    await connection.close()
    running.cancel()
    await asyncio.wait((running,))


async def test_registers_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    attempts = 0
    registered = asyncio.Event()

    async def register(_: list[DeviceRecord]) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise ConnectionError("no scheduler yet")
        registered.set()

    running = asyncio.create_task(Host([NullEngine], DEVICES, register, heartbeat_s=0.01).run())
    await registered.wait()
    assert "no scheduler yet" in caplog.text
    running.cancel()
    await asyncio.wait((running,))


def test_unknown_profile() -> None:
    with pytest.raises(UnknownProfile):
        Host([NullEngine], [HostedDevice("x", "y")], register=None)  # type: ignore[arg-type]


@ray.remote(num_cpus=0)
class Scheduler:
    def __init__(self) -> None:
        self.records: dict[str, DeviceRecord] = {}

    async def register(self, records: list[DeviceRecord]) -> None:
        self.records |= {record.name: record for record in records}

    async def address(self) -> str | None:
        found = self.records.get("laptop")
        return found.address if found else None


@pytest.mark.usefixtures("cluster")
async def test_a_killed_host_comes_back() -> None:
    scheduler = Scheduler.remote()  # type: ignore[attr-defined]
    host = DeviceHost.remote([NullEngine], DEVICES, scheduler.register.remote, heartbeat_s=0.1)  # type: ignore[attr-defined]
    while (before := await scheduler.address.remote()) is None:
        pass
    connection = await connect(before)
    laptop = connection.engine("laptop")
    session = await laptop.open([20], Sampling())
    ray.kill(host, no_restart=False)
    async with asyncio.timeout(30):
        await connection.finished
        with pytest.raises(EngineStopped):
            await session.verify([])
        while (after := await scheduler.address.remote()) == before:
            pass
        connection = await connect(after)
        await connection.engine("laptop").open([20], Sampling())
        await connection.close()
    ray.kill(host)


def named(name: str) -> NullEngine:
    engine = NullEngine(tokens_per_s=1000)
    engine.info = msgspec.structs.replace(engine.info, model=name)
    return engine


async def test_several_models_are_measured_and_each_device_has_its_own_loaded() -> None:
    registered: asyncio.Queue[list[DeviceRecord]] = asyncio.Queue()
    slow = {"large": "xiaomi14-qwen05b"}
    devices = [HostedDevice("a"), HostedDevice("b", link=LinkProfile(rtt_s=0.002), profiles=slow)]
    makes = [partial(named, "little"), partial(named, "large")]
    running = asyncio.create_task(Host(makes, devices, registered.put, heartbeat_s=0.01).run())
    a, b = await registered.get()
    assert (a.model, b.model, [model.name for model in a.models]) == ("little", "little", ["little", "large"])
    assert all(model.load_s > 0 for model in (*a.models, *b.models))
    assert a.models[1].decode_token_s > 0.0009, "as it was measured"
    assert b.models[1].decode_token_s == pytest.approx(1 / 21.47), "as its profile has it"
    connection = await connect(a.address)
    assert set(connection.peer_engines) == {"a/little", "a/large", "b/little", "b/large"}
    assert connection.peer_engines["b/large"].model == "large"
    async with asyncio.timeout(30):
        session = await connection.engine("b/large").open([20], Sampling())
        while (there := await registered.get())[1].model != "large":
            pass
        assert (there[0].model, there[1].emulated) == ("little", True)
        await session.cancel()
    await connection.close()
    running.cancel()
    await asyncio.wait((running,))


async def test_a_model_is_in_memory_once_and_only_while_a_device_has_it_loaded() -> None:
    made: list[NullEngine] = []

    def make() -> NullEngine:
        made.append(NullEngine())
        return made[-1]

    model = await SharedModel.measured(make)
    assert model.engine is None
    with pytest.raises(EngineStopped):
        await made[0].open([20], Sampling())
    first, second = await asyncio.gather(model.take(), model.take())
    assert first is second is made[1]
    await model.give_back()
    assert model.engine is first
    await model.give_back()
    assert model.engine is None
    with pytest.raises(EngineStopped):
        await first.open([20], Sampling())
    assert await model.take() is made[2]


async def test_operators_stop_a_device_and_cut_its_link() -> None:
    """Have a host hear of orders when it registers, and follow them."""
    orders, registered = NO_ORDERS, asyncio.Queue[list[DeviceRecord]]()

    async def register(records: list[DeviceRecord]) -> Registration:
        await registered.put(records)
        return Registration(1, orders)

    async def names(expected: set[str]) -> list[DeviceRecord]:
        """Return the records once there are those alone."""
        async with asyncio.timeout(10):
            while True:
                records = await registered.get()
                if {record.name for record in records} == expected:
                    return records

    running = asyncio.create_task(Host([NullEngine], DEVICES, register, heartbeat_s=0.01).run())
    laptop, _ = await names({"laptop", "phone"})
    assert laptop.link is None
    connection = await connect(laptop.address)
    engine = connection.engine("laptop")
    session = await engine.open([20], Sampling())
    orders = DeviceOrders(frozenset({"laptop"}), {"phone": LinkOrder(cut=True)})
    await names(set())
    with pytest.raises(EngineStopped):
        await session.verify([])
    with pytest.raises(EngineStopped):
        await engine.open([20], Sampling())
    cut = asyncio.create_task(connection.engine("phone").open([20], Sampling()))
    orders = DeviceOrders(links={"laptop": LinkOrder(profile=LinkProfile(rtt_s=0.004, loss=0.25))})
    laptop, phone = await names({"laptop", "phone"})
    await cut  # what waited has arrived
    assert (laptop.rtt_s, laptop.link, phone.rtt_s) == (0.004, LinkState(loss=0.25), 0.002)
    await engine.open([20], Sampling())
    orders = NO_ORDERS
    async with asyncio.timeout(10):
        while (await registered.get())[0].link != LinkState():
            pass
    await connection.close()
    running.cancel()
    await asyncio.wait((running,))
