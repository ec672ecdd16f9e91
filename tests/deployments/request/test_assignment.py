"""Endpoints and requests as the router sees them: what is not said stands for nothing, and keys tell them apart."""

from __future__ import annotations

from dataclasses import fields, replace

import msgspec
import pytest

from tandem.cluster.devices.record import DeviceRecord, ModelRecord
from tandem.deployments.request.assignment import (
    FREE,
    IDLE,
    Assignment,
    EndpointInfo,
    EndpointLost,
    Load,
    NoEndpoint,
    Prices,
    RoutingRequest,
)
from tandem.engine.base import EngineStats
from tandem.policies.cost import MAINS_USD_PER_J, PerToken
from tandem.policies.scheduling.outstanding import Outstanding

REPLICA = EndpointInfo("verifier 1", "10.0.0.1:1", "verifier")
SMALL = ModelRecord(
    name="small",
    vocabulary="v2",
    load_s=9.0,
    prefill_token_s=0.5,
    decode_token_s=0.7,
    prefill_j=2.0,
    decode_j=4.0,
)
PHONE = DeviceRecord(
    name="phone",
    address="10.0.0.2:2",
    profile="p",
    model="large",
    vocabulary="v1",
    sessions=3,
    rtt_s=0.25,
    prefill_token_s=0.125,
    prefill_j=1.0,
    decode_j=3.0,
)


def test_free_is_free() -> None:
    assert PerToken(prefill=0.0, decode=0.0) == FREE
    assert Prices() == Prices(FREE, MAINS_USD_PER_J)
    assert Assignment("cloud", {}).prices == Prices()


def test_an_engine_that_tells_nothing_is_idle() -> None:
    assert Load() == IDLE == Load(0, 0, 0, 1, 0, 0, 0, None, 0.0, 0, None)


def test_a_load_is_what_the_stats_say() -> None:
    names = [each.name for each in fields(Load) if each.name not in ("served", "room", "backlog")]
    stats = EngineStats(sessions=2)
    for number, name in enumerate(names, start=3):
        setattr(stats, name, number)
    load = Load.of(stats, places=8)
    assert [getattr(load, name) for name in names] == list(range(3, 3 + len(names)))
    assert load.served is stats.served
    told = EngineStats(sessions=2, blocks_free=4, blocks_total=4, outstanding=Outstanding(backlog=70))
    assert (Load.of(told, places=8).room, Load.of(told, places=8).backlog) == (6, 70)
    assert Load.of(EngineStats(), places=8).backlog is None, "no engine of Tandem's"


def test_an_endpoint_of_which_nothing_is_known() -> None:
    assert (REPLICA.sessions, REPLICA.rtt_s, REPLICA.prefill_token_s, REPLICA.load_s) == (0, 0.0, 0.0, 0.0)
    assert not REPLICA.device
    assert not REPLICA.rests
    assert REPLICA.joules == FREE
    assert REPLICA.price is None
    assert replace(REPLICA, load=Load(waiting=5)) == REPLICA, "its load is no news"


def test_the_endpoint_of_a_device_with_one_model() -> None:
    endpoint = EndpointInfo.of(PHONE)
    assert endpoint == EndpointInfo(
        "phone",
        "10.0.0.2:2",
        "phone",
        "large",
        "v1",
        sessions=3,
        rtt_s=0.25,
        device=True,
        prefill_token_s=0.125,
        joules=PerToken(1.0, 3.0),
    )


def test_the_same_device_with_another_of_its_models() -> None:
    loaded = EndpointInfo.of(msgspec.structs.replace(PHONE, models=(SMALL,)))
    assert loaded.engine == "phone/large"
    other = loaded.having(SMALL, 9.0)
    assert other == replace(
        loaded,
        engine="phone/small",
        model="small",
        vocabulary="v2",
        prefill_token_s=0.5,
        decode_token_s=0.7,
        joules=PerToken(2.0, 4.0),
        load_s=9.0,
    )
    assert other.key == loaded.key == "phone@10.0.0.2:2", "a device is one, whatever its model"


def test_a_replica_is_told_by_its_engine() -> None:
    assert REPLICA.key == "verifier@10.0.0.1:1"


@pytest.mark.parametrize(("continuation", "continues"), [("kept", True), ("anew", True), ("none", False)])
def test_which_endpoints_go_on_with_an_answer(continuation: str, continues: bool) -> None:
    endpoint = replace(REPLICA, continuation=continuation)  # type: ignore[arg-type]
    assert endpoint.continues is continues


def test_a_request_that_says_nothing() -> None:
    asked = RoutingRequest()
    assert (asked.request, asked.prompt_tokens, asked.max_tokens, asked.sent, asked.reader_rate) == (
        0,
        1,
        256,
        0,
        0.0,
    )
    assert (asked.lost, asked.full, asked.priority) == ((), (), 0)
    assert (asked.mode, asked.device, asked.budget, asked.exchange_rate, asked.modes, asked.devices) == (
        None,
    ) * 6


def test_errors_say_where() -> None:
    assert NoEndpoint("none is up", "verifier").pool == "verifier"
    assert NoEndpoint("none is up").pool is None
    lost = EndpointLost(REPLICA, "it is gone")
    assert (str(lost), lost.endpoint, lost.code) == (
        "verifier 1 at 10.0.0.1:1: it is gone",
        REPLICA,
        "endpoint_lost",
    )
