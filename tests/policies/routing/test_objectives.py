from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.routing.objectives import (
    MOST_NOISE,
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


def test_noise_makes_the_mean_longer_than_the_median() -> None:
    """Half of the variance counts, up to a noise of MOST_NOISE."""
    values = Objective(second_usd=1.0)
    for noise, factor in ((0.4, math.exp(0.08)), (MOST_NOISE, None), (9.0, None)):
        noisy = Prediction(Estimate(2.0, noise=noise), Estimate(0.1, noise=noise), tokens=11)
        expected = factor or math.exp(MOST_NOISE**2 / 2)
        assert values.loss(noisy) == pytest.approx((2.0 + 0.1 * 10) * expected)


def test_tokens_that_come_unevenly_are_waited_for_beside_the_rest() -> None:
    read = Prediction(Estimate(0.0), Estimate(0.1), tokens=11, rate=20.0, uneven_s=0.7)
    assert read.stall_s.value == pytest.approx(0.05 * 10 + 0.7)
    assert read._replace(tokens=1.0).stall_s.value == 0.7
    assert read._replace(tokens=1.5).stall_s.value == pytest.approx(0.05 * 0.5 + 0.7)
    assert Prediction(Estimate(0.0), Estimate(0.1)).stall_s.value == 0.0, "no tokens"


@pytest.mark.parametrize(
    ("limits", "limited"),
    [
        (Objective(), False),
        (Objective(ttft_s=1.0), False),
        (Objective(usd=1.0), True),
        (Objective(min_quality=0.1), True),
        (Objective(privacy=Leaves.HIDDEN_STATES), True),
    ],
)
def test_limits_that_may_rule_out_every_way(limits: Objective, limited: bool) -> None:
    """A first token that comes too late is better than none."""
    assert limits.limited is limited


def test_of_two_limits_the_stricter_one_counts() -> None:
    one = Objective(1.0, 2.0, 3.0, ttft_s=0.5, usd=2.0, min_quality=0.3, privacy=Leaves.NOTHING)
    other = Objective(ttft_s=0.7, usd=1.0, min_quality=0.6, privacy=Leaves.TEXT)
    assert one.within(other) == Objective(1.0, 2.0, 3.0, 0.5, 1.0, 0.6, Leaves.NOTHING)
    assert other.within(one).privacy is Leaves.NOTHING


def test_what_a_second_and_the_quality_are_worth_by_name() -> None:
    worth = {name: (each.second_usd, each.quality_usd) for name, each in OBJECTIVES.items()}
    assert worth == {
        "balanced": (5e-4, 2e-3),
        "fast": (5e-3, 2e-3),
        "cheap": (5e-5, 5e-4),
        "private": (5e-4, 2e-3),
    }
