from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.routing.objectives import (
    OBJECTIVES,
    Candidate,
    Estimate,
    Leaves,
    Objective,
    Prediction,
    ranked,
)

SLOW = Prediction(Estimate(2.0), Estimate(0.1), tokens=101)
QUICK = Prediction(Estimate(0.1), Estimate(0.02), Estimate(1e-3), tokens=101)
OWN = Prediction(Estimate(0.5), Estimate(0.05), lost=Estimate(0.3), leaves=Leaves.NOTHING, tokens=101)


def test_a_loss_is_what_is_paid_and_what_the_waiting_and_the_lost_quality_are_worth() -> None:
    values = Objective(second_usd=1e-3, quality_usd=1e-2)
    assert values.loss(QUICK) == pytest.approx(1e-3 + 1e-3 * (0.1 + 2.0))
    assert values.loss(OWN) == pytest.approx(1e-3 * (0.5 + 5.0) + 1e-2 * 0.3)
    assert values.loss(OWN._replace(others_s=2.0)) - values.loss(OWN) == pytest.approx(2e-3)


def test_a_reader_waits_only_for_what_comes_slower_than_he_reads() -> None:
    read = SLOW._replace(rate=20.0)
    assert read.stall_s.value == pytest.approx(0.05 * 100)
    assert read._replace(rate=5.0).stall_s.value == 0.0
    assert SLOW.stall_s.value == pytest.approx(10.0), "without a reader all of it is waited for"


def test_eighty_of_a_hundred_lie_in_the_interval() -> None:
    low, high = Estimate(2.0, noise=0.3, doubt=0.4).interval
    assert low * high == pytest.approx(4.0)
    assert math.log(high / 2.0) == pytest.approx(1.2816 * 0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("objective", "chosen"), [("fast", "quick"), ("cheap", "own"), ("private", "own"), ("balanced", "quick")]
)
def test_objectives_differ(objective: str, chosen: str) -> None:
    ways = [Candidate("slow", None, SLOW), Candidate("quick", None, QUICK), Candidate("own", None, OWN)]
    ranking = ranked([OBJECTIVES[objective].limited_loss(each.expected) for each in ways])
    assert ranking is not None
    assert ways[ranking.best].mode == chosen


@given(
    st.lists(
        st.builds(
            Prediction,
            st.builds(Estimate, st.floats(0.01, 10), st.floats(0, 3)),
            st.builds(Estimate, st.floats(0.001, 1), st.just(0.0)),
            usd=st.builds(Estimate, st.floats(0, 0.01)),
            lost=st.builds(Estimate, st.floats(0, 1)),
            leaves=st.sampled_from(Leaves),
            tokens=st.floats(1, 500),
        ),
        max_size=5,
    ),
    st.builds(
        Objective,
        ttft_s=st.sampled_from([0.5, math.inf]),
        usd=st.sampled_from([0.005, math.inf]),
        min_quality=st.sampled_from([0.0, 0.7]),
        privacy=st.sampled_from(Leaves),
    ),
)
def test_no_limit_is_exceeded_and_no_allowed_way_is_better(
    predictions: list[Prediction], objective: Objective
) -> None:
    ranking = ranked([objective.limited_loss(each) for each in predictions])
    allowed = [each for each in predictions if objective.allows(each)]
    if ranking is None:
        assert not allowed
        return
    best = predictions[ranking.best]
    assert objective.allows(best)
    assert objective.loss(best) == min(map(objective.loss, allowed))
    assert (ranking.second is None) == (len(allowed) == 1)
