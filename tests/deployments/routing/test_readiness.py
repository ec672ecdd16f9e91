"""Readiness: a mode can serve if each of its roles can be filled."""

from __future__ import annotations

import pytest

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.readiness import NO_DEVICE, Planned, empty, lacks

PHONE = DeviceRecord(name="phone", address="", profile="", model="small", vocabulary="v")
ALL = Planned("", {"verifier": False, "drafter": False, "middle": False}, devices=True)


def up(*pools: str, devices: tuple[DeviceRecord, ...] = (PHONE,), awaited: tuple[str, ...] = ()) -> Snapshot:
    listed = {pool: (EndpointInfo(f"{pool} 1", "a:1", pool),) for pool in pools}
    return Snapshot(1, listed, {device.name: device for device in devices}, awaited=frozenset(awaited))


def test_with_everything_up_nothing_is_lacking() -> None:
    found = lacks(ALL, up("verifier", "drafter", "middle"), "tandem")
    assert found == dict.fromkeys(("cloud", "device", "speculative", "race", "split", "sketch"), "")


def test_modes_without_their_pools_are_not_served() -> None:
    alone = Planned("", {"verifier": False}, devices=False)
    assert lacks(alone, up("verifier", devices=()), "tandem") == {"cloud": "", "sketch": ""}


@pytest.mark.parametrize(
    ("pools", "lacking"),
    [
        (
            ("drafter", "middle"),
            {mode: "no verifier is up" for mode in ("cloud", "speculative", "race", "sketch")},
        ),
        (("verifier", "drafter"), {"split": "no middle is up"}),
        (("verifier", "middle"), {}),  # the phone drafts
    ],
)
def test_an_empty_pool_is_named(pools: tuple[str, ...], lacking: dict[str, str]) -> None:
    found = lacks(ALL, up(*pools), "tandem")
    assert {mode: lack for mode, lack in found.items() if lack} == lacking
    assert set(empty(ALL, up(*pools))) == {"verifier", "drafter", "middle"} - set(pools)


def test_a_pool_that_may_be_empty_is_not_lacking() -> None:
    asleep = Planned("", {"verifier": True}, devices=False)
    assert set(lacks(asleep, up(devices=()), "tandem").values()) == {""}
    assert empty(asleep, up()) == []


def test_devices_lack_where_they_are_awaited_and_none_is_there() -> None:
    pools = ("verifier", "drafter", "middle")
    away = lacks(ALL, up(*pools, devices=(), awaited=("phone",)), "tandem")
    assert {mode for mode, lack in away.items() if lack == NO_DEVICE} == {"device", "race"}
    assert not any(lacks(ALL, up(*pools, awaited=("laptop",)), "tandem").values()), "the phone will do"
    assert not any(lacks(ALL, up(*pools, devices=()), "tandem").values()), "those that dial in may be away"


def test_pools_and_devices_are_each_models_own() -> None:
    second = Planned("b", {"verifier": False}, devices=True, elsewhere=frozenset({"phone"}))
    theirs = DeviceRecord(name="phone", address="", profile="", model="small", vocabulary="v", serves=("a",))
    assert lacks(second, up("verifier", devices=(theirs,)), "b")["cloud"] == "no verifier-b is up"
    assert not any(lacks(second, up("verifier-b", devices=(), awaited=("phone",)), "b").values())
