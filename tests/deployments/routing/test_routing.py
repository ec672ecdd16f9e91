"""Waits of the router for endpoints that are not up, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.config.settings import AccountSettings, RouterSettings
from tandem.deployments.request.assignment import EndpointInfo, NoEndpoint, RoutingRequest
from tandem.deployments.request.job import NoSuchDevice
from tandem.deployments.routing.assigner import AWAY_S, LATELY_S, RETRY_LOST_S, Assigner
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.routing import Routing
from tandem.policies.cost import PerToken, per_million
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing
from tests.virtual import in_virtual_time, now_s

UP = Snapshot(1, {"verifier": (EndpointInfo("verifier 0", "v:0", "verifier"),)}, {})
CLOUD = RoutingRequest(mode="cloud")


def router(**settings: float) -> Routing:
    assigner = Assigner(collaboration.create("explicit"), lambda: routing.create("jsq"), 8)
    return Routing(assigner, RouterSettings(**settings))


@in_virtual_time
async def test_a_new_router_refuses_nothing_before_it_knows_what_is_up() -> None:
    """A device that it has not heard of yet may well be there, and so may every replica."""
    made = router(wait_s=10.0)
    asking = asyncio.ensure_future(made.assign(CLOUD))
    await asyncio.sleep(3.0)
    assert not asking.done()
    made.see(UP)
    assert (await asking).endpoints["target"].address == "v:0"
    assert now_s() == 3.0, "at once, when it hears"


@in_virtual_time
async def test_a_device_that_may_dial_in_may_be_asked_for_again() -> None:
    """And one that nobody knows is refused for good; neither is waited for."""
    made = router(wait_s=10.0)

    async def has_key(name: str) -> bool:
        return name == "laptop"

    made._may_dial_in = has_key
    made.see(UP)
    for named in ("laptop", ("toaster", "laptop")):
        with pytest.raises(NoEndpoint, match="may dial in"):
            await made.assign(replace(CLOUD, device=named))
    for named in ("toaster", ("toaster", "kettle")):
        with pytest.raises(NoSuchDevice, match="'toaster'"):
            await made.assign(replace(CLOUD, device=named))
    assert now_s() == 0.0


@in_virtual_time
async def test_what_the_scheduler_knew_then_is_known_here() -> None:
    made = router()
    knowing = asyncio.ensure_future(made.snapshot(2))
    for version in (1, 3):
        await asyncio.sleep(1.0)
        assert not knowing.done()
        made.see(replace(UP, version=version))
    assert await knowing == replace(UP, version=3)
    phone = DeviceRecord(name="phone", address="d:0", profile="native", model="m", vocabulary="v")
    made.see(replace(UP, version=4, devices={"phone": phone}))
    assert (await made.snapshot(4)).devices == {"phone": phone}
    assert await made.snapshot(4, devices=False) == replace(UP, version=4)
    assert now_s() == 2.0


@in_virtual_time
async def test_what_does_not_come_is_not_waited_for_longer_than_the_settings_say() -> None:
    made = router(wait_s=2.0)
    made.see(Snapshot(1, {"verifier": ()}, {}))
    with pytest.raises(NoEndpoint):
        await made.assign(CLOUD)
    assert now_s() == pytest.approx(2.0)


@in_virtual_time
async def test_an_endpoint_that_failed_the_request_is_tried_again_after_a_while() -> None:
    made = router(wait_s=10.0)
    made.see(UP)
    key = UP.pools["verifier"][0].key
    again = await made.assign(replace(CLOUD, lost=(key,)))
    assert again.endpoints["target"].key == key
    assert now_s() == pytest.approx(RETRY_LOST_S, abs=0.5)


PHONE = DeviceRecord(name="phone", address="d:0", profile="native", model="m", vocabulary="v")
THERE = replace(UP, devices={"phone": PHONE})
GONE = replace(UP, version=2, gone=("phone",), since=1)


@pytest.mark.parametrize("mode", [None, "device", "speculative", "race", "sketch"])
@pytest.mark.parametrize("device", ["phone", "any", ("phone", "toaster")])
@in_virtual_time
async def test_a_device_that_has_just_left_is_done_without(
    mode: str | None, device: str | tuple[str, ...]
) -> None:
    """Requests go on as after its loss, and within three seconds: its program may be long in coming back."""
    made = router(wait_s=30.0)
    made.see(THERE)
    await asyncio.sleep(5.0)
    made.see(GONE)
    began_s = now_s()
    got = await made.assign(RoutingRequest(mode, device))
    assert (got.mode, got.device) == ("cloud", None)
    assert now_s() - began_s == pytest.approx(AWAY_S, abs=0.5)


@in_virtual_time
async def test_a_device_that_comes_back_at_once_is_used() -> None:
    made = router(wait_s=30.0)
    made.see(THERE)
    made.see(replace(UP, version=2))  # a new scheduler's, which knows no devices yet
    asking = asyncio.ensure_future(made.assign(RoutingRequest("device", "phone")))
    await asyncio.sleep(AWAY_S / 2)
    made.see(replace(THERE, version=3, since=2))
    assert (await asking).device == "phone"
    assert now_s() == AWAY_S / 2


@pytest.mark.parametrize(
    ("mode", "modes", "away_s"),
    [("device", None, 1.5 * LATELY_S), ("device", ("device",), 0.0), ("split", None, 0.0)],
)
@in_virtual_time
async def test_a_device_that_does_not_come_back_is_not_there(
    mode: str, modes: tuple[str, ...] | None, away_s: float
) -> None:
    """Nor is one done without whose key may not use the cloud's modes, or whose prompt is to stay with it."""
    made = router(wait_s=30.0)
    made.see(THERE)
    made.see(GONE)
    await asyncio.sleep(away_s)
    began_s = now_s()
    with pytest.raises(NoSuchDevice, match="'phone'"):
        await made.assign(RoutingRequest(mode, "phone", modes=modes))
    assert now_s() == began_s


def test_the_dearest_verifier_is_reckoned_with() -> None:
    """Part by part: one service may ask more for prompts, another for answers."""
    there = router()
    assert there.dearest() == per_million(AccountSettings().price_in, AccountSettings().price_out)
    dear = [PerToken(3e-6, 1e-9), PerToken(1e-9, 5e-6), None]
    up = tuple(EndpointInfo(f"v{n}", "", "verifier", price=price) for n, price in enumerate(dear))
    there.see(Snapshot(1, {"verifier": up}))
    assert there.dearest() == PerToken(3e-6, 5e-6)
