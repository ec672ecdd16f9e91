"""Device hosts over real Ray: who owns them, who takes them over, who ends them."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest
import ray

from tandem.cluster.devices.host import DeviceHost
from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.wire.client import connect
from tandem.deployments.pools.device_hosts import DeviceSettings, Edge, HostSettings
from tandem.deployments.pools.engines import NullSettings
from tandem.deployments.pools.replica import EndpointSettings
from tandem.engine.base import Sampling

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("cluster")]

SAME = EndpointSettings(token="the same one again")


def host(name: str, *devices: str) -> HostSettings:
    return HostSettings(
        name=name, engine=NullSettings(kind="null"), devices=tuple(DeviceSettings(name=d) for d in devices)
    )


def edge(owner: str, *hosts: HostSettings) -> Edge:
    async def register(records: Sequence[DeviceRecord]) -> None:
        """Ignore the records."""

    return Edge("edges", hosts, register, SAME, owner)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    for name in up():
        ray.kill(ray.get_actor(name))
    until(lambda: not up())


def up() -> list[str]:
    return sorted(n for n in ray.util.list_named_actors() if n.startswith("edges devices/"))


def test_records_go_by_the_names_of_their_fields(tmp_path: Path) -> None:
    """The scheduler may be of another version."""
    said = tmp_path / "said"

    async def register(records: Sequence[DeviceRecord]) -> None:
        said.with_suffix(".new").write_bytes(pickle.dumps(list(records)))
        said.with_suffix(".new").rename(said)

    hosts = (host("one", "a"),)
    made = Edge("edges", hosts, register, SAME, "named")
    made._start(made._actor_name(hosts[0]), hosts[0])
    until(said.exists)
    assert b"tandem.deployments.messages" in said.read_bytes()
    assert b"decode_token_s" in said.read_bytes()
    assert [record.name for record in pickle.loads(said.read_bytes())] == ["a"]


def test_another_version_has_hosts_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    same, before = host("one", "a"), edge("old", host("one", "a"))
    after = edge("new", same)
    assert after._actor_name(same) == before._actor_name(same)
    monkeypatch.setattr("tandem.deployments.pools.device_hosts.VERSION", "0.2.0")
    assert edge("newer", same)._hosts.keys().isdisjoint(before._hosts)


def asked(question: Callable[[DeviceHost], Any]) -> dict[str, Any]:
    """Return each running host's answer; one may end between being listed and being asked."""
    answers = {}
    for name in up():
        with suppress(ValueError, ray.exceptions.RayActorError):
            answers[name] = ray.get(ray.get_actor(name).__ray_call__.remote(question))
    return answers


def pids() -> dict[str, int]:
    return asked(lambda _: os.getpid())


def leaving() -> dict[str, bool]:
    """Whether each drains."""
    return asked(lambda actor: actor._host._leaving)


def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < within_s
        time.sleep(0.05)


def test_a_successor_takes_over_the_hosts_it_wants_and_ends_the_others() -> None:
    old = edge("first", host("kept", "a"), host("changed", "b"), host("removed", "c"))
    old.tend_once()
    until(lambda: len(up()) == 3)
    before = pids()
    new = edge("second", host("kept", "a"), host("changed", "b", "bb"))  # the first was killed
    until(lambda: new.tend_once() and len(up()) == 2)  # the old ones go no sooner than the new one is up
    after = pids()
    assert [name.split("/")[1].split()[0] for name in after] == ["changed", "kept"]
    (same,) = set(before) & set(after)
    assert before[same] == after[same], "it never stopped"
    new.stop()
    until(lambda: not up())


def test_the_old_schedulers_end_leaves_what_its_successor_has_adopted() -> None:
    """Redeploy the application with a chosen token."""
    old = edge("first", host("kept", "a"))
    old.tend_once()
    before = pids()
    new = edge("second", host("kept", "a"))
    new.tend_once()
    assert (old.owned, new.owned) == (False, True)
    old.stop()
    assert pids() == before
    new.stop()
    until(lambda: not up())


class Registered:
    """Register of devices."""

    def __init__(self) -> None:
        self._there = asyncio.Event()

    async def add(self, records: Sequence[DeviceRecord]) -> None:
        self._address = records[0].address
        self._there.set()

    async def address(self) -> str:
        """Return the address of the first one."""
        await self._there.wait()
        return self._address


async def test_a_host_that_is_replaced_finishes_what_it_has_begun() -> None:
    registered: Any = ray.remote(num_cpus=0)(Registered).remote()
    made = Edge("edges", [host("changed", "a")], registered.add.remote, SAME, "only")
    await asyncio.to_thread(made.tend_once)
    connection = await connect(await registered.address.remote(), token=SAME.token)
    session = await connection.engine("a").open([20], Sampling(max_tokens=4))
    made.want([host("changed", "a", "b")])
    await asyncio.to_thread(until, lambda: made.tend_once() and any(leaving().values()))
    assert len(up()) == 2
    async with aclosing(session.generate()) as stream:
        tokens = [token async for part in stream for token in part.ids]
    assert len(tokens) == 4
    await session.cancel()
    await asyncio.to_thread(until, lambda: made.tend_once() and len(up()) == 1)
    await connection.close()
    made.stop()


async def test_a_host_that_is_wanted_again_while_it_drains_is_started_anew() -> None:
    """The draining host would never register again by itself, and its devices would not be found."""
    registered: Any = ray.remote(num_cpus=0)(Registered).remote()
    made = Edge("edges", [host("one", "a")], registered.add.remote, SAME, "only")
    await asyncio.to_thread(made.tend_once)
    connection = await connect(await registered.address.remote(), token=SAME.token)
    session = await connection.engine("a").open([20], Sampling(max_tokens=4))
    before = await asyncio.to_thread(pids)
    made.want([host("two", "b")])
    await asyncio.to_thread(until, lambda: made.tend_once() and any(leaving().values()))
    made.want([host("one", "a")])
    await asyncio.to_thread(until, lambda: made.tend_once() and len(up()) == 1)
    assert await asyncio.to_thread(pids) == before, "its answer is not cut"
    await session.cancel()
    await asyncio.to_thread(until, lambda: made.tend_once() and pids() not in ({}, before))
    assert list((await asyncio.to_thread(leaving)).values()) == [False]
    await connection.close()
    made.stop()


async def test_a_host_that_somebody_ended_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.deployments.pools.device_hosts.EVERY_S", 0.1)
    made = edge("only", host("kept", "a"))
    tending = asyncio.create_task(made.tend())
    await asyncio.to_thread(until, lambda: len(up()) == 1)
    before = await asyncio.to_thread(pids)
    ray.kill(ray.get_actor(up()[0]))
    await asyncio.to_thread(until, lambda: len(up()) == 1 and pids() != before)
    tending.cancel()
    made.stop()


async def test_a_hosts_devices_hold_its_models() -> None:
    registered: Any = ray.remote(num_cpus=0)(Registered).remote()
    settings = HostSettings(
        name="several",
        models=("tiny", "medium"),
        devices=(DeviceSettings(name="a"), DeviceSettings(name="b")),
    )
    made = Edge("edges", [settings], registered.add.remote, SAME, "only")
    await asyncio.to_thread(made.tend_once)
    connection = await connect(await registered.address.remote(), token=SAME.token)
    infos = connection.peer_engines
    assert {name: info.model for name, info in infos.items()} == {
        "a/tiny": "tiny", "a/medium": "medium", "b/tiny": "tiny", "b/medium": "medium",
    }  # fmt: skip
    for name in infos:
        session = await connection.engine(name).open([20], Sampling(max_tokens=4, ignore_eos=True))
        async with aclosing(session.generate()) as stream:
            assert len([token async for part in stream for token in part.ids]) == 4
        await session.cancel()
    await connection.close()
    made.stop()
