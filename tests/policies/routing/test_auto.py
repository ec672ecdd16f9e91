from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.policies.routing.auto import ByPrediction
from tandem.policies.routing.collaboration import (
    Candidates,
    CollaborationState,
    DeviceView,
    NothingAllowed,
    NothingUp,
)
from tandem.policies.routing.objectives import OBJECTIVES, Candidate, Estimate, Leaves, Objective, Prediction
from tests.policies.routing.test_collaboration import MODES

CLOUD = Candidate("cloud", None, Prediction(Estimate(0.2), Estimate(0.02), Estimate(1e-4), tokens=100))
RACE = Candidate("race", "a", Prediction(Estimate(0.1), Estimate(0.05), Estimate(1e-4), tokens=100))
OWN = Candidate(
    "device",
    "a",
    Prediction(Estimate(1.0), Estimate(0.2), lost=Estimate(0.2), leaves=Leaves.NOTHING, tokens=100),
)


def state(*candidates: Candidate, objective: Objective | None = None) -> CollaborationState:
    def weighed(objective: Objective) -> Candidates:
        return candidates, [objective.limited_loss(each.expected) for each in candidates]

    return CollaborationState(None, None, MODES, lambda _: None, objective=objective, candidates=weighed)


def test_the_way_of_the_least_expected_loss_is_taken_and_the_runner_up_is_told() -> None:
    chosen = ByPrediction(explore=0).choose(state(CLOUD, RACE, OWN))
    assert (chosen.mode, chosen.device) == ("cloud", None)
    reason = chosen.reason
    assert reason is not None
    assert reason.second == RACE
    assert 0 < reason.loss < reason.second_loss
    assert reason.candidates == 3


def test_a_requests_own_objective_goes_before_the_settings() -> None:
    policy = ByPrediction("fast", explore=0)
    assert policy.choose(state(CLOUD, OWN)).mode == "cloud"
    assert policy.choose(state(CLOUD, OWN, objective=OBJECTIVES["private"])).mode == "device"


def test_nothing_is_better_than_what_exceeds_a_limit() -> None:
    policy = ByPrediction(explore=0)
    good = replace(OBJECTIVES["private"], min_quality=0.9)
    with pytest.raises(NothingAllowed):
        policy.choose(state(CLOUD, OWN, objective=good))
    with pytest.raises(NothingUp):
        policy.choose(state(objective=good))
    assert policy.choose(state()).mode == "cloud", "without limits, as `explicit` does"


def test_where_nothing_is_quick_enough_the_quickest_is_taken() -> None:
    chosen = ByPrediction(explore=0).choose(state(CLOUD, RACE, OWN, objective=Objective(ttft_s=0.01)))
    assert chosen.mode == "cloud"
    assert chosen.reason is not None
    assert chosen.reason.missed


def test_what_is_in_doubt_is_tried_now_and_then_and_never_against_a_limit() -> None:
    """And what that is expected to cost is no more than the share of all losses that may be spent so."""
    unsure = RACE._replace(
        expected=RACE.expected._replace(tpot_s=Estimate(0.03, doubt=1.0), ttft_s=Estimate(0.2, doubt=1.0))
    )
    policy, values = ByPrediction(explore=0.05), OBJECTIVES["balanced"]
    spent = total = tried = 0.0
    for _ in range(2000):
        chosen = policy.choose(state(CLOUD, unsure))
        total += values.loss(CLOUD.expected)
        if chosen.mode == "race":
            tried += 1
            spent += values.loss(unsure.expected) - values.loss(CLOUD.expected)
    assert 20 < tried < 500
    assert spent <= 0.05 * total
    limited = Objective(ttft_s=0.15)
    sure = Candidate("cloud", None, CLOUD.expected._replace(ttft_s=Estimate(0.1)))
    assert {policy.choose(state(sure, unsure, objective=limited)).mode for _ in range(200)} == {"cloud"}
    assert {ByPrediction(explore=0).choose(state(CLOUD, unsure)).mode for _ in range(50)} == {"cloud"}


def test_devices_are_preferred_that_would_answer_soonest() -> None:
    policy = ByPrediction()
    quick, slow = DeviceView("q", 0.1, 0, 1e-3, 0.02), DeviceView("s", 0.0, 0, 1e-2, 0.1)
    assert policy.preference(quick) < policy.preference(slow)
    assert policy.preference(replace(quick, sessions=9)) > policy.preference(slow)
    assert policy.preference(slow) < policy.preference(DeviceView("u", 0.0, 0)), "it does not tell its speed"
    alone_s, shared_s = (policy.preference(replace(quick, sessions=n))[1] for n in (0, 1))
    assert shared_s == pytest.approx(2 * alone_s)


@pytest.mark.parametrize("wrong", [{"objective": "best"}, {"explore": 2.0}, {"change": -0.1}])
def test_wrong_parameters_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        ByPrediction(**wrong)  # type: ignore[arg-type]


def test_an_answer_changes_only_to_a_way_that_saves_enough_of_the_rest() -> None:
    """The cloud's 100 tokens are expected to take 0.2 + 2 s more: a loss of 0.0012."""
    policy, present = ByPrediction(), replace_tpot(RACE.expected, 0.1)
    changed = policy.reconsider(state(CLOUD), present)
    assert changed is not None
    assert (changed.mode, changed.device) == ("cloud", None)
    assert changed.reason is not None
    assert policy.reconsider(state(CLOUD), replace_tpot(RACE.expected, 0.025)) is None, "it saves too little"
    assert policy.reconsider(state(), present) is None, "there is no other way"
    assert ByPrediction(change=1.0).reconsider(state(CLOUD), present) is None


def test_an_answer_does_not_change_to_what_its_limits_forbid() -> None:
    present = replace_tpot(OWN.expected, 1.0)
    assert ByPrediction().reconsider(state(CLOUD), present) is not None
    assert ByPrediction().reconsider(state(CLOUD, objective=OBJECTIVES["private"]), present) is None


def replace_tpot(expected: Prediction, tpot_s: float) -> Prediction:
    """Return the expectation of an answer that goes on with so many seconds per token."""
    return expected._replace(ttft_s=Estimate(0.0), tpot_s=Estimate(tpot_s))


@pytest.mark.parametrize(("informs", "tried"), [(0.0, False), (1.0, True)])
def test_what_tells_much_of_others_is_tried_though_it_is_a_little_worse(informs: float, tried: bool) -> None:
    worse = CLOUD.expected._replace(usd=Estimate(1.1e-4), informs=informs)
    told = Candidate("speculative", "a", worse)
    policy = ByPrediction(explore=0.05)
    modes = {policy.choose(state(CLOUD, told)).mode for _ in range(2000)}
    assert modes == ({"cloud", "speculative"} if tried else {"cloud"})
