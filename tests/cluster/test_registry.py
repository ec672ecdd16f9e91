from __future__ import annotations

from cluster.registry import DeviceRecord, DeviceRegistry
from policies.collaboration import DeviceView


def record(name: str, address: str = "h:1", sessions: int = 0) -> DeviceRecord:
    return DeviceRecord(
        name=name, address=address, profile="native", model="m", vocabulary="v", rtt_s=0.01, sessions=sessions
    )


def test_registering_is_the_sign_of_life() -> None:
    registry = DeviceRegistry(expiry_s=5.0)
    registry.register([record("b"), record("a", sessions=2)], now_s=100.0)
    assert registry.views(105.0) == [DeviceView("a", 0.01, 2), DeviceView("b", 0.01, 0)]
    registry.register([record("a")], now_s=104.0)
    assert [r.name for r in registry.present(106.0)] == ["a"]
    assert registry.get("b", 106.0) is None
    assert registry.views(110.0) == []


def test_registering_anew_replaces() -> None:
    registry = DeviceRegistry()
    registry.register([record("a", "h:1")], 0.0)
    registry.register([record("a", "h:2")], 1.0)
    found = registry.get("a", 1.0)
    assert found is not None
    assert found.address == "h:2"


def test_forgetting() -> None:
    registry = DeviceRegistry()
    registry.register([record("a", "h:1"), record("b", "h:1"), record("c", "h:2")], 0.0)
    registry.lost("h:1")
    assert [r.name for r in registry.present(0.0)] == ["c"]
    registry.remove("c")
    registry.remove("c")
    assert registry.present(0.0) == []
