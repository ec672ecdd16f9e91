"""The router asked for a better way to go on with an answer."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tandem.deployments.learning.report import Part, Report
from tandem.deployments.modes import MODES
from tandem.deployments.request.assignment import Assignment, EndpointInfo, Present, RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.routing.directory import Snapshot
from tandem.policies.routing.objectives import OBJECTIVES
from tests.deployments.routing.test_forecaster import DRAFTER, OPEN, VERIFIERS, came, phone, router

pytestmark = pytest.mark.virtual_time
BEGUN = replace(OPEN, sent=50)
LATE_S = 2.0


def present(mode: str, tpot_s: float = LATE_S, **endpoints: EndpointInfo) -> Present:
    device = endpoints.get("device")
    return Present(mode, device.name if device else None, endpoints, tpot_s)


async def test_a_late_answer_is_told_of_a_better_way_and_a_good_one_is_not() -> None:
    made = router(phone("a"))
    better = made.reconsider(BEGUN, present("cloud", target=VERIFIERS[0]))
    assert better is not None
    assert better.forecast is not None
    assert better.forecast.reason is not None
    assert better.briefing is not None or MODES[better.mode].briefing is None
    assert made.reconsider(BEGUN, present("cloud", 0.005, target=VERIFIERS[0])) is None


async def test_it_is_counted_where_the_answer_goes() -> None:
    made, only = router(phone("a")), replace(BEGUN, modes=("device",))
    before = made.assigner.load(EndpointInfo.of(phone("a")))
    assert made.reconsider(only, present("cloud", target=VERIFIERS[0])) is not None
    assert made.assigner.load(EndpointInfo.of(phone("a"))) == before + 1


async def test_a_device_has_room_for_the_answer_that_it_has() -> None:
    """An answer that a device drafts may go on at that device alone, though it takes one at a time."""
    busy = msgspec.structs.replace(phone("a"), capacity=1, sessions=1)
    made, only = router(busy), replace(BEGUN, modes=("device",))
    better = made.reconsider(only, present("speculative", target=VERIFIERS[0], device=EndpointInfo.of(busy)))
    assert better is not None
    assert (better.mode, better.device) == ("device", "a")
    assert made.reconsider(only, present("cloud", target=VERIFIERS[0])) is None, "it is full for others"
    assert made.assigner.load(EndpointInfo.of(busy)) == 2, "the new session, and the old one until it ends"


async def test_the_same_way_is_no_other_one_but_another_replica_is() -> None:
    made, only = router(), replace(BEGUN, modes=("cloud",))
    first, second = VERIFIERS
    better = [made.reconsider(only, present("cloud", target=first)) for _ in range(2)]
    assert [each.endpoints["target"] for each in better if each is not None] == [second]


@pytest.mark.parametrize("mode", ["race", "sketch"])
async def test_nothing_begins_to_race_or_to_be_sketched_on_its_way(mode: str) -> None:
    made = router(phone("a"), phone("b"))
    assert made.reconsider(replace(BEGUN, modes=(mode,)), present("cloud", target=VERIFIERS[0])) is None


async def test_limits_hold_on_the_way_too() -> None:
    made = router(phone("a"))
    private = replace(BEGUN, objective=OBJECTIVES["private"])
    here = present("device", device=EndpointInfo.of(phone("a")))
    assert made.reconsider(private, here) is None
    assert made.reconsider(BEGUN, here) is not None


async def test_a_router_that_knows_nothing_changes_nothing() -> None:
    made = router(phone("a"))
    made.see(Snapshot(2, {"drafter": (DRAFTER,)}, {}))
    assert made.reconsider(BEGUN, present("cloud", target=VERIFIERS[0])) is None


async def test_what_each_part_of_an_answer_took_is_learnt() -> None:
    made, wanted = router(), replace(OPEN, modes=("cloud",))

    def expected(wanted: RoutingRequest) -> Assignment:
        assignment = made.assign_now(wanted)
        assert assignment.forecast is not None
        return assignment

    for _ in range(20):
        forecast = expected(wanted).forecast
        assert forecast is not None
        part = Part(forecast, 50, 0.1, 0.2, 0.0)
        made.learn(Report("me", "", 100, True, Bill(), mode="device", forecast=forecast, parts=(part,)))
    learnt = expected(wanted).forecast
    assert learnt is not None
    assert learnt.expected.tpot_s.value == pytest.approx(0.2, rel=0.2)
    assert learnt.expected.tokens == pytest.approx(100, rel=0.2), "the answer was of 100 tokens all the same"
    other = router()
    for _ in range(20):
        other.learn(came(other.assign_now(wanted), 0.1, 0.2))
    alike = other.assign_now(wanted).forecast
    assert alike is not None
    assert learnt.expected.tpot_s.value == pytest.approx(alike.expected.tpot_s.value, rel=0.1)
