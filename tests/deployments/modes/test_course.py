"""Course of an answer: what came of each part, and the search for a better way."""

from __future__ import annotations

import asyncio

import pytest

from tandem.deployments.learning.report import Part
from tandem.deployments.modes.course import Course
from tandem.deployments.request.assignment import Assignment, Present, RoutingRequest, Unavailable
from tandem.deployments.request.forecast import Forecast
from tandem.policies.routing.objectives import Estimate, Prediction

pytestmark = pytest.mark.virtual_time

EXPECTED_S = 0.1
TIMEOUT_S = 2.0
WANTED = RoutingRequest()
PRESENT = Present("cloud", None, {}, 0.5)
BETTER = Assignment("device", {})


def forecast(mode: str = "cloud") -> Forecast:
    expected = Prediction(Estimate(0.3), Estimate(EXPECTED_S))
    return Forecast(mode, None, expected, expected, (mode,))


async def unasked(wanted: RoutingRequest, present: Present) -> Assignment | None:
    raise AssertionError("no better way is sought")


def test_a_part_tells_when_its_tokens_came() -> None:
    course, expected = Course(unasked, 0.0, TIMEOUT_S), forecast()
    course.begin(expected, 10.0)
    course.delivered(3, 0.5, 0.0, 12.0)
    course.delivered(2, 0.75, 0.0, 13.0)
    course.delivered(2, 1.5, 0.0, 15.0)
    course.end_part()
    assert course.parts == [Part(expected, 7, 2.0, 3.0 / 6, 1.0)]


def test_a_part_of_one_token_has_no_time_per_token() -> None:
    course, expected = Course(unasked, 0.0, TIMEOUT_S), forecast()
    course.begin(expected, 10.0)
    course.delivered(1, 0.5, 0.0, 12.0)
    course.end_part()
    assert course.parts == [Part(expected, 1, 2.0, 0.0, 0.0)]


def test_of_a_part_without_tokens_or_forecast_nothing_is_kept() -> None:
    course = Course(unasked, 0.0, TIMEOUT_S)
    course.begin(forecast(), 10.0)
    course.end_part()
    course.begin(None, 10.0)
    assert course.delivered(100, 0.0, 0.0, 100.0) == 0.0
    course.end_part()
    course.end_part()
    assert course.parts == []


def begun(course: Course) -> Course:
    course.begin(forecast(), 0.0)
    return course


async def test_no_second_way_is_sought_at_once() -> None:
    hold = asyncio.Event()

    async def reconsider(wanted: RoutingRequest, present: Present) -> Assignment | None:
        assert (wanted, present) == (WANTED, PRESENT)
        await hold.wait()
        return BETTER

    course = begun(Course(reconsider, 0.0, TIMEOUT_S))
    seen = [course.delivered(1, 0.0, 0.0, 5 * EXPECTED_S * n) for n in range(40)]
    assert max(seen) == pytest.approx(5 * EXPECTED_S)
    course.seek(WANTED, PRESENT)
    await asyncio.sleep(0)
    assert course.better is None
    assert {course.delivered(1, 0.0, 0.0, 20.0 + 5 * EXPECTED_S * n) for n in range(80)} == {0.0}
    hold.set()
    await asyncio.sleep(0.1)
    assert course.better is BETTER
    assert max(course.delivered(1, 0.0, 0.0, 60.0 + 5 * EXPECTED_S * n) for n in range(80)) > 0.0
    course.end_part()
    assert course.better is None, "it was for the part that is over"


@pytest.mark.parametrize("error", [Unavailable("away"), TimeoutError()])
async def test_a_router_that_fails_has_found_no_better_way(error: Exception) -> None:
    async def reconsider(wanted: RoutingRequest, present: Present) -> Assignment | None:
        raise error

    course = begun(Course(reconsider, 0.0, TIMEOUT_S))
    course.seek(WANTED, PRESENT)
    await asyncio.sleep(0.1)
    assert course.better is None


async def test_the_router_is_not_waited_for_any_longer() -> None:
    left_s: list[float] = []

    async def reconsider(wanted: RoutingRequest, present: Present) -> Assignment | None:
        try:
            await asyncio.sleep(100 * TIMEOUT_S)
        finally:
            left_s.append(asyncio.get_running_loop().time())
        return BETTER

    for ended, waits_s in ((False, TIMEOUT_S), (True, TIMEOUT_S / 2)):
        course, began_s = begun(Course(reconsider, 0.0, TIMEOUT_S)), asyncio.get_running_loop().time()
        course.seek(WANTED, PRESENT)
        await asyncio.sleep(TIMEOUT_S / 2)
        if ended:
            course.end_part()
        await asyncio.sleep(TIMEOUT_S)
        assert course.better is None
        assert left_s[-1] - began_s == pytest.approx(waits_s)
