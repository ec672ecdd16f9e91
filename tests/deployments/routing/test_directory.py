"""The directory: what it lists, what it forgets, and when it calls that news."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.request.assignment import EndpointInfo, Load
from tandem.deployments.routing import directory as module
from tandem.deployments.routing.directory import Directory, Snapshot


def test_the_gateway_that_a_device_has_dialled_last_has_it() -> None:
    """The one before says that it is there until it has noticed, and is told; then that it has gone."""
    directory = Directory(expiry_s=4.0)
    before = msgspec.structs.replace(PHONE, address="one:1", dialled_in=True, dialled_s=1.0)
    after = msgspec.structs.replace(before, address="two:2", dialled_s=2.0)
    for record in (before, after, before):
        directory.register([record], 0.0)
    assert directory.snapshot.devices == {"phone": after}
    assert directory.is_elsewhere(before)
    assert not directory.is_elsewhere(after)
    directory.lost("phone", "one:1", 0.0)
    assert directory.snapshot.devices == {"phone": after}
    directory.lost("phone", "two:2", 0.0)
    directory.register([before], 1.0)
    assert directory.snapshot.devices == {"phone": before}, "the other gateway is gone"


PHONE = DeviceRecord(name="phone", address="127.0.0.1:9", profile="native", model="m", vocabulary="v")
REPLICA = EndpointInfo("verifier 1", "127.0.0.1:1", "verifier")


def test_devices_come_stay_and_go() -> None:
    directory = Directory(expiry_s=4.0)
    assert directory.register([PHONE], now_s=0.0)
    assert directory.snapshot.devices == {"phone": PHONE}
    assert not directory.register([PHONE], now_s=3.0), "a sign of life is no news"
    assert not directory.update(now_s=6.9)
    assert directory.update(now_s=7.1)
    assert directory.snapshot.devices == {}


def test_load_is_news() -> None:
    directory = Directory(expiry_s=4.0)
    directory.register([PHONE], now_s=0.0)
    busy = msgspec.structs.replace(PHONE, sessions=1)
    assert directory.register([busy], now_s=1.0)
    assert directory.snapshot.devices["phone"].sessions == 1


def test_a_lost_address_comes_back_by_registering() -> None:
    directory = Directory(expiry_s=4.0)
    directory.register([PHONE], now_s=0.0)
    assert directory.lost("phone", PHONE.address, now_s=0.1)
    assert not directory.lost("phone", PHONE.address, now_s=0.1)
    assert directory.snapshot.devices == {}
    assert directory.register([PHONE], now_s=1.0)


def test_a_device_behind_a_gateway_that_is_lost_twice_takes_no_other_along() -> None:
    phone, laptop = (
        msgspec.structs.replace(PHONE, name=name, dialled_in=True) for name in ("phone", "laptop")
    )
    directory = Directory(expiry_s=4.0)
    directory.register([phone, laptop], now_s=0.0)
    assert directory.lost("phone", PHONE.address, now_s=0.1)
    assert not directory.lost("phone", PHONE.address, now_s=0.2)
    assert list(directory.snapshot.devices) == ["laptop"]


def test_a_pool_is_what_was_listed_last() -> None:
    directory = Directory(expiry_s=4.0)
    directory.list_pool("verifier", [REPLICA])
    assert directory.update(now_s=0.0)
    version = directory.version
    directory.list_pool("verifier", [REPLICA])
    assert not directory.update(now_s=1.0)
    assert directory.version == version
    directory.list_pool("verifier", [])
    assert directory.update(now_s=2.0)
    assert directory.snapshot.pools == {"verifier": ()}


def test_what_an_engine_has_to_do_is_told_but_is_no_news() -> None:
    directory = Directory(expiry_s=4.0)
    directory.list_pool("verifier", [REPLICA])
    directory.update(now_s=0.0)
    directory.list_pool("verifier", [replace(REPLICA, load=Load(blocks_free=7))])
    assert not directory.update(now_s=1.0)
    (told,) = directory.since(directory.version).pools["verifier"]
    assert told.load.blocks_free == 7


def apply(known: Snapshot, news: Snapshot) -> Snapshot:
    if news.since is None:
        return news
    assert news.since == known.version
    devices = {name: record for name, record in known.devices.items() if name not in news.gone}
    return Snapshot(news.version, news.pools, {**devices, **news.devices}, awaited=news.awaited)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["register", "lost", "pool", "look"]), st.integers(0, 5), st.integers(0, 3)
        ),
        max_size=50,
    ),
    st.integers(1, 4),
)
def test_differences_add_up_to_what_is_there(steps: list[tuple[str, int, int]], remembered: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "REMEMBERED", remembered)
        directory, known = Directory(expiry_s=4.0, version=100), Snapshot()
        directory.expect(["d1", "d3"])
        for now_s, (what, number, load) in enumerate(steps):
            match what:
                case "register":
                    record = msgspec.structs.replace(
                        PHONE, name=f"d{number}", address=f"a:{number % 2}", sessions=load
                    )
                    directory.register([record], float(now_s))
                case "lost":
                    directory.lost(f"d{number}", f"a:{number % 2}", float(now_s))
                case "pool":
                    directory.list_pool("verifier", [REPLICA] * (load % 2))
                    directory.update(float(now_s))
                case _:
                    directory.update(float(now_s))
                    known = apply(known, directory.since(known.version))
                    assert known == directory.snapshot
                    assert known.awaited == {"d1", "d3"} - known.devices.keys()
        known = apply(known, directory.since(known.version))
        assert known == directory.snapshot


def test_what_is_expected_is_awaited_until_it_registers_and_when_it_has_gone() -> None:
    directory = Directory(expiry_s=4.0)
    directory.expect([PHONE.name, "tablet"])
    assert directory.update(0.0)
    assert directory.snapshot.awaited == {PHONE.name, "tablet"}
    directory.register([PHONE], now_s=0.0)
    assert directory.since(directory.version).awaited == {"tablet"}
    directory.update(4.1)
    assert directory.since(directory.version).awaited == {PHONE.name, "tablet"}
    directory.expect([])
    assert directory.update(4.2)
    assert not directory.snapshot.awaited


def test_only_what_has_changed_is_told() -> None:
    directory = Directory(expiry_s=4.0)
    phones = [msgspec.structs.replace(PHONE, name=f"p{n}") for n in range(100)]
    directory.register(phones, now_s=0.0)
    version = directory.version
    directory.register([msgspec.structs.replace(phones[7], sessions=1)], now_s=1.0)
    assert list(directory.since(version).devices) == ["p7"]
    assert directory.since(directory.version).devices == {}


@pytest.mark.parametrize("version", [-1, 0, 5, 10_000])
def test_who_knows_another_directory_is_told_everything(version: int) -> None:
    directory = Directory(expiry_s=4.0, version=1000)
    directory.register([PHONE], now_s=0.0)
    assert directory.since(version) == directory.snapshot


def test_what_can_go_on_in_a_replicas_place() -> None:
    one, other, drafter = (
        EndpointInfo("a", "a:1", "verifier", "large"),
        EndpointInfo("b", "b:1", "verifier", "large"),
        EndpointInfo("c", "c:1", "drafter", "large"),
    )
    small, final = replace(other, model="small"), replace(other, continuation="none")
    for beside, replaced in [(other, True), (drafter, False), (small, False), (final, False)]:
        snapshot = Snapshot(1, {"verifier": (one, beside)})
        assert snapshot.replaces(one) == replaced, beside
    assert not Snapshot(1, {"verifier": (one,)}).replaces(one)
    assert not Snapshot(1, {"verifier": (one, other)}).replaces(replace(one, device=True))
