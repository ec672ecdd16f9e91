"""A stand-in for the router, in virtual time: it answers while that does not, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from tandem.deployments.request.assignment import Assignment, EndpointInfo, NoEndpoint, RoutingRequest
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.models import ModelRoutings, RoutedModel
from tandem.deployments.routing.routing import Routing
from tandem.deployments.routing.stand_in import LATE_S, SIGN_S, RouterStandIn
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing
from tests.virtual import in_virtual_time, now_s

UP = Snapshot(1, {"verifier": (EndpointInfo("verifier 0", "v:0", "verifier"),)}, {})
CLOUD = RoutingRequest(mode="cloud")
OWN = Assignment("device", {})


class Router:
    """up: whether it answers at all. busy_s: for how long a request waits for an endpoint there. followers: of the
    scheduler, by all stand-ins."""

    def __init__(self) -> None:
        self.up, self.busy_s, self.followers = asyncio.Event(), 0.0, 0
        self.up.set()

    async def assign(self) -> Assignment:
        await self.up.wait()
        await asyncio.sleep(self.busy_s)
        return OWN

    async def follow(self, see: Callable[[Snapshot], object]) -> None:
        self.followers += 1
        try:
            await asyncio.sleep(0.01)
            see(UP)
            await asyncio.Event().wait()
        finally:
            self.followers -= 1


def model_routings() -> ModelRoutings:
    def one(model: RoutedModel) -> Routing:
        return Routing(Assigner(collaboration.create("explicit"), lambda: routing.create("jsq"), 8))

    return ModelRoutings([RoutedModel("m", "", 8, 8)], one)


def beside(router: Router) -> RouterStandIn:
    return RouterStandIn(model_routings, router.follow, router.up.wait)


@in_virtual_time
async def test_a_router_that_is_stopped_is_not_waited_for() -> None:
    router = Router()
    there = beside(router)
    assert await there.assign(CLOUD, router.assign()) == OWN
    router.up.clear()
    for late_s in (LATE_S + SIGN_S, 0.0, 0.0):
        began_s = now_s()
        made = await there.assign(CLOUD, router.assign())
        assert made.endpoints["target"].address == "v:0"
        assert now_s() - began_s == pytest.approx(late_s, abs=0.02)
    assert router.followers == 1
    router.up.set()
    await asyncio.sleep(SIGN_S)
    assert router.followers == 0
    assert await there.assign(CLOUD, router.assign()) == OWN


@in_virtual_time
async def test_a_request_that_waits_at_a_router_that_is_there_waits_on() -> None:
    router = Router()
    router.busy_s = 8.0
    there = beside(router)
    assert await there.assign(CLOUD, router.assign()) == OWN
    assert now_s() == 8.0
    assert router.followers == 0


@in_virtual_time
@pytest.mark.parametrize("refusal", [None, NoEndpoint("no device is up")])
async def test_a_request_that_waits_here_is_answered_by_the_router_once_it_is_back(
    refusal: Exception | None,
) -> None:
    """The scheduler has said nothing until then, and its changes are no longer followed."""
    router = Router()
    router.up.clear()

    async def follow(see: Callable[[Snapshot], object]) -> None:
        await asyncio.Event().wait()

    async def ask() -> Assignment:
        made = await router.assign()
        if refusal is not None:
            raise refusal
        return made

    there = RouterStandIn(model_routings, follow, router.up.wait)
    asking = asyncio.create_task(there.assign(CLOUD, ask()))
    await asyncio.sleep(LATE_S + 2 * SIGN_S)
    assert not asking.done()
    router.up.set()
    if refusal is None:
        assert await asking == OWN
    else:
        with pytest.raises(NoEndpoint, match="no device"):
            await asking
    assert now_s() == pytest.approx(LATE_S + 2 * SIGN_S, abs=0.01)


@in_virtual_time
async def test_what_the_router_refuses_is_refused() -> None:
    async def refuse() -> Assignment:
        raise NoEndpoint("no verifier is up")

    with pytest.raises(NoEndpoint):
        await beside(Router()).assign(CLOUD, refuse())


@in_virtual_time
async def test_a_request_whose_client_has_gone_asks_nobody_any_more() -> None:
    router = Router()
    router.up.clear()
    there = beside(router)
    asking = asyncio.create_task(there.assign(replace(CLOUD, request=1), router.assign()))
    await asyncio.sleep(LATE_S / 2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert len(asyncio.all_tasks()) == 1
    there.close()
