"""Objectives in order: the first decides, up to its tolerance; nobody is late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.sketch.objectives import Metric, Objective, Outlook, preferred, ranked

few = st.sampled_from([0.0, 1.0, 2.0, 3.0])
outlooks = st.lists(st.builds(Outlook, few, few, few, few, few), max_size=8)
orders = st.permutations(list(Metric)).flatmap(lambda all_: st.integers(0, 5).map(lambda n: all_[:n]))


@given(outlooks, orders, st.lists(few, min_size=5, max_size=5), few)
def test_each_objective_is_met_within_its_tolerance(
    ways: list[Outlook], order: list[Metric], tolerances: list[float], most_s: float
) -> None:
    objectives = [Objective(*pair) for pair in zip(order, tolerances, strict=False)]
    chosen = preferred(ways, objectives, most_s)
    left = [way for way in ways if way.latency <= most_s]
    assert (chosen is None) == (not left)
    if chosen is None:
        return
    for metric, tolerance in objectives:
        best = min(way.of(metric) for way in left)
        assert ways[chosen].of(metric) <= best + tolerance
        left = [way for way in left if way.of(metric) <= best + tolerance]
    assert ways[chosen] in left
    assert ways.index(left[0]) == chosen, "the first among equals"


@given(outlooks.filter(bool), orders)
def test_without_tolerances_it_is_the_lexicographic_minimum(ways: list[Outlook], order: list[Metric]) -> None:
    def key(way: Outlook) -> tuple[float, ...]:
        return tuple(way.of(metric) for metric in order)

    chosen = preferred(ways, [Objective(metric) for metric in order])
    assert chosen is not None
    assert key(ways[chosen]) == min(map(key, ways))


def test_a_tolerance_leaves_something_to_the_next_objective() -> None:
    good, quick = Outlook(0.10, 5.0, 9.0, 0, 0), Outlook(0.14, 3.0, 8.0, 0, 0)
    for tolerance, best in ((0.0, 0), (0.03, 0), (0.05, 1)):
        assert preferred([good, quick], ranked({"error": tolerance, "throughput": 0.0})) == best
    assert preferred([good, quick], ranked({"error": 0.0}), most_latency_s=8.5) == 1, "a hard constraint"
    assert preferred([good, quick], ranked({"error": 0.0}), most_latency_s=7.0) is None


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="'speed'"):
        ranked({"speed": 0.0})
    with pytest.raises(ValueError, match="below 0"):
        ranked({"error": -0.1})
