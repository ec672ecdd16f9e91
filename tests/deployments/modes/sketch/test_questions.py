"""Messages between executors and the router in mode sketch: a field that is left out stands for nothing."""

from __future__ import annotations

from tandem.deployments.modes.sketch.questions import (
    Place,
    PlaceReport,
    PlaceRequest,
    PlanRequest,
    SketchPlan,
)
from tandem.deployments.request.assignment import EndpointInfo


def test_without_a_plan_the_target_answers_in_full() -> None:
    plan = SketchPlan()
    assert (plan.sketch, plan.reason, plan.hopeless, plan.model) == (0, "", False, "")
    assert (plan.budget_s, plan.within_s, plan.full_s) == (0.0, 0.0, 0.0), "not known"
    assert (plan.share, plan.candidates) == (1.0, 1)


def test_a_request_that_asks_for_no_more() -> None:
    wanted = PlanRequest(7, 100)
    assert (wanted.target_token_s, wanted.min_quality, wanted.devices) == (0.0, 0.0, None)
    place = PlaceRequest(1, 7, 100)
    assert (place.dry_s, place.wait_s, place.budget_s, place.min_quality) == (0.0, 0.0, 0.0, 0.0)
    assert (place.lost, place.beside, place.model, place.share, place.devices) == ((), (), None, 1.0, None)


def test_a_place_that_was_not_used() -> None:
    assert PlaceReport(1) == PlaceReport(1, tokens=0, longest=0, seconds=0.0, lost=False)


def test_the_speed_of_a_place_may_be_unknown() -> None:
    assert Place(EndpointInfo("phone", "here:1", "phone"), 4).token_s == 0.0
