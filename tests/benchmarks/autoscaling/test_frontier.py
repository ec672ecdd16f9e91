"""Frontiers, what they are at equal quality, and what is chosen on which requests."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.benchmarks.autoscaling import days
from tandem.benchmarks.autoscaling.frontier import (
    CHOOSING,
    JUDGED,
    NAMES,
    OURS,
    Point,
    Run,
    Setting,
    choose,
    cost_at,
    frontier,
    grid,
    over,
    run,
)

SETTING = Setting("fixed", 3)


def test_a_frontier_has_no_point_that_another_beats() -> None:
    assert frontier([(2.0, 10.0), (1.0, 30.0), (3.0, 12.0), (4.0, 5.0)]) == [
        (1.0, 30.0),
        (2.0, 10.0),
        (4.0, 5.0),
    ]


def test_a_cost_between_two_points_is_between_theirs() -> None:
    points = [(1.0, 30.0), (4.0, 10.0)]
    assert cost_at(2.0, points) == pytest.approx(20.0), "in the middle of the logarithm"
    assert cost_at(0.1, points) == 30.0
    assert cost_at(99.0, points) == 10.0


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(1, 1e6)), min_size=1, max_size=12))
def test_nothing_costs_less_than_its_frontier(points: list[tuple[float, float]]) -> None:
    for quality, cost in points:
        assert cost_at(quality, points) <= cost * (1 + 1e-9)


def test_the_same_frontier_is_as_good_as_itself() -> None:
    points = [Point(100.0, 1.0, 0.1), Point(50.0, 2.0, 0.5), Point(25.0, 4.0, 0.9)]
    assert over(points, points, "p99_s") == pytest.approx(1.0)
    half = [Point(p.replica_s / 2, p.p99_s, p.stall_s) for p in points]
    assert over(half, points, "p99_s") == pytest.approx(0.5)
    assert over(half, points, "stall_s") == pytest.approx(0.5)


def test_only_qualities_that_both_have_are_compared() -> None:
    rival = [Point(100.0, 1.0, 0.1), Point(50.0, 4.0, 0.5)]
    ours = [Point(10.0, 0.5, 0.1), Point(60.0, 2.0, 0.3), Point(1.0, 9.0, 0.9)]
    assert over(ours, rival, "p99_s") == pytest.approx(60 / 75)
    assert over(ours[:1], rival, "p99_s") == pytest.approx(0.1), "none is: the nearest"


def test_who_is_beaten_in_all_is_not_chosen() -> None:
    tried = {
        Setting("fixed", 1): [Point(100.0, 99.0, 9.0)],
        Setting("fixed", 2): [Point(200.0, 3.0, 1.0)],
        Setting("fixed", 3): [Point(300.0, 3.5, 1.5)],
        Setting("fixed", 4): [Point(400.0, 2.0, 0.5)],
    }
    assert choose(tried) == [Setting("fixed", 2), Setting("fixed", 4)], "a P99 of 99 s is bad"
    assert choose({Setting("fixed", 1): [Point(100.0, 99.0, 9.0)]}) == [Setting("fixed", 1)], (
        "the best it has"
    )


@pytest.mark.parametrize("trace", days.NAMES)
def test_rivals_have_no_less_to_choose_from(trace: str) -> None:
    counts = {kind: sum(s.kind == kind for s in grid(trace)) for kind in NAMES}
    assert counts["serve_best"] >= counts[OURS] > 0
    assert counts["keda"] >= counts[OURS]
    assert all(str(setting) for setting in grid(trace))


def test_what_is_judged_was_not_chosen_on() -> None:
    assert days.requests("week", CHOOSING)[1] != days.requests("week", JUDGED)[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", NAMES)
def test_each_policy_serves_a_day(kind: str) -> None:
    setting = next(s for s in grid("code") if s.kind == kind)
    one, point = run(Run("code", 3, setting))
    assert one.setting is setting
    assert point.replica_s > 0
    assert 0 < point.p99_s < math.inf
