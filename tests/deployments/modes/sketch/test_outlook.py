"""Forecasts of sketched answers: from what was learnt of others, mixed with what the target's own brings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.deployments.modes.sketch.opening import IDLE
from tandem.deployments.modes.sketch.outlook import NOTE, Plan, Sketches, mixed, outlook
from tandem.deployments.modes.sketch.questions import SketchTaught
from tandem.deployments.request.assignment import Prices
from tandem.policies.cost import PerToken
from tandem.policies.routing.objectives import Estimate, Prediction
from tandem.policies.sketch.sketch_length import SketchDecision, SketchState

SKETCHED = Prediction(
    Estimate(2.0, noise=0.1),
    Estimate(0.01),
    Estimate(1e-4),
    Estimate(5.0),
    Estimate(0.2),
    tokens=400.0,
    rate=10.0,
    others_s=1.0,
)
FULL = SKETCHED._replace(
    ttft_s=Estimate(1.0), tpot_s=Estimate(0.05), joules=Estimate(0.0), lost=Estimate(0.0), others_s=4.0
)


def test_as_long_as_nothing_is_known_all_are_sketched_and_no_sentence_is_judged() -> None:
    sketches = Sketches()
    assert sketches.planned.value == 1.0
    assert sketches.lost("", 0.8).value == pytest.approx(0.2)


def test_what_the_target_writes_anew_lowers_the_trust_and_what_it_judges_is_not_lost() -> None:
    sketches = Sketches()
    sketches.learn(SketchTaught([], 0, 0, 0), "recipes", 0.8)
    assert sketches.lost("recipes", 0.8).value == pytest.approx(0.2), "it had no sentences"
    sketches.learn(SketchTaught([], 10, 5, 5), "recipes", 0.8)
    assert sketches.verified.value == 0.5
    assert sketches.lost("recipes", 0.8).value > 0.5 * 0.2
    assert sketches.lost("letters", 0.8).value == pytest.approx(0.5 * 0.2)
    sketches.learn(SketchTaught([], 4, 9, 0), "letters", 0.8)
    assert 0.5 < sketches.verified.value <= 1.0, "no more than all are judged"


@given(st.floats(0.0, 1.0))
def test_a_mixture_lies_between_the_two(share: float) -> None:
    found = mixed(SKETCHED, FULL, share)
    assert found.ttft_s.value == pytest.approx(1.0 + share)
    assert found.tpot_s.value == pytest.approx(0.05 - 0.04 * share)
    assert found.usd.value == pytest.approx(1e-4)
    assert found.joules.value == pytest.approx(5.0 * share)
    assert found.lost.value == pytest.approx(0.2 * share)
    assert found.others_s == pytest.approx(4.0 - 3.0 * share)
    assert (found.ttft_s.noise, found.tokens, found.rate) == (0.1, 400.0, 10.0)


def plan(queue: float, read_token_s: float = 0.0) -> Plan:
    """Return a plan of a sketch of 40 tokens, which are written in 2 s; the answer is complete after 12 s."""
    state = SketchState(400, lambda tokens: 0.05 * tokens, lambda tokens: 0.0, (), 1)
    choice = SketchDecision(40, "small", 12.0, None)
    return Plan(choice, state, queue, 60, PerToken(0.01, 0.02), read_token_s)


PRICES = Prices(PerToken(1e-6, 2e-6), exchange_rate=1e-3)


@pytest.mark.parametrize(
    ("queue", "read_token_s", "wait_s"),
    [
        (IDLE, 0.0, 2.0 + NOTE * 10.0),  # sketch, then its first note's share of the rest
        (IDLE, 0.05, 2.0 + 100 * 0.05),  # the device has more to read
        (IDLE - 0.01, 0.05, NOTE * 2.0 + 1.0),  # the target begins it
    ],
)
def test_the_first_sentence_comes_from_who_has_it_first(
    queue: float, read_token_s: float, wait_s: float
) -> None:
    found = outlook(FULL, plan(queue, read_token_s), PRICES, Estimate(0.3))
    assert found.ttft_s.value == pytest.approx(FULL.ttft_s.value + wait_s)
    assert found.ttft_s.noise == FULL.ttft_s.noise


def test_a_sketched_answer_costs_the_sketch_and_the_devices_energy() -> None:
    found = outlook(FULL, plan(IDLE), PRICES, Estimate(0.3))
    joules = 100 * 0.01 + 400 * 0.02
    assert found.tpot_s == Estimate(pytest.approx((1 - NOTE) * 10.0 / 399))
    assert found.joules == Estimate(pytest.approx(joules))
    assert found.usd == Estimate(pytest.approx(60 * 1e-6 + 40 * 2e-6 + joules * 1e-3))
    assert found.others_s == pytest.approx(4.0 * 40 / 400)
    assert (found.lost, found.informs, found.tokens) == (Estimate(0.3), 0.0, 400.0)
