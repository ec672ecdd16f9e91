"""The roster: what it lists, what it forgets, and when it calls that news."""

from __future__ import annotations

import msgspec

from cluster.registry import DeviceRecord
from deployments.assignment import EndpointInfo
from deployments.roster import Roster

PHONE = DeviceRecord(name="phone", address="127.0.0.1:9", profile="native", model="m", vocabulary="v")
REPLICA = EndpointInfo("verifier 1", "127.0.0.1:1", "verifier")


def test_devices_come_stay_and_go() -> None:
    roster = Roster(expiry_s=4.0)
    assert roster.register([PHONE], now_s=0.0)
    assert roster.snapshot.devices == {"phone": PHONE}
    assert not roster.register([PHONE], now_s=3.0), "a sign of life is no news"
    assert not roster.update(now_s=6.9)
    assert roster.update(now_s=7.1)
    assert roster.snapshot.devices == {}


def test_load_is_news() -> None:
    roster = Roster(expiry_s=4.0)
    roster.register([PHONE], now_s=0.0)
    busy = msgspec.structs.replace(PHONE, sessions=1)
    assert roster.register([busy], now_s=1.0)
    assert roster.snapshot.devices["phone"].sessions == 1


def test_a_lost_address_comes_back_by_registering() -> None:
    roster = Roster(expiry_s=4.0)
    roster.register([PHONE], now_s=0.0)
    assert roster.lost(PHONE.address, now_s=0.1)
    assert not roster.lost(PHONE.address, now_s=0.1)
    assert roster.snapshot.devices == {}
    assert roster.register([PHONE], now_s=1.0)


def test_a_pool_is_what_was_listed_last() -> None:
    roster = Roster(expiry_s=4.0)
    roster.list_pool("verifier", [REPLICA])
    assert roster.update(now_s=0.0)
    version = roster.snapshot.version
    roster.list_pool("verifier", [REPLICA])
    assert not roster.update(now_s=1.0)
    assert roster.snapshot.version == version
    roster.list_pool("verifier", [])
    assert roster.update(now_s=2.0)
    assert roster.snapshot.pools == {"verifier": ()}
