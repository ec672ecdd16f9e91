from __future__ import annotations

import math
from dataclasses import replace
from statistics import mean

import pytest

from tandem.benchmarks.choice.decision import decision_ms
from tandem.benchmarks.choice.evaluation import NEAR, evaluate, recovery
from tandem.benchmarks.choice.oracle import Judgement, judge
from tandem.benchmarks.choice.workloads import BY_LENGTH, MODES, WORKLOADS
from tandem.policies.routing.objectives import OBJECTIVES


def test_a_drift_is_over_where_a_dozen_in_a_row_are_near_the_oracle() -> None:
    own = [2.0] * 5 + [NEAR - 0.01] * 20
    found = Judgement(own, [[1.0, 3.0]] * 25, [])
    assert recovery(found, range(0, 50, 2)) == 10.0
    assert recovery(found._replace(own=[2.0] * 25), range(25)) == math.inf


@pytest.mark.slow
def test_the_oracle_is_no_worse_than_what_was_chosen() -> None:
    """Each judged request is answered in every mode, under the load that it met."""
    workload = replace(WORKLOADS[0], devices=4)
    outcome = evaluate(workload, 3, 24, 4)
    assert len(outcome.judgement.modes) == len(outcome.judgement.own) >= 4
    assert all(len(losses) == len(MODES) for losses in outcome.judgement.modes)
    chosen = [outcome.judgement.answers[index].mode for index in range(6, 24, 4)]
    for own, losses, mode in zip(outcome.judgement.own, outcome.judgement.modes, chosen, strict=False):
        assert own >= 0.9 * min(losses)
        assert own == pytest.approx(losses[MODES.index(mode)], rel=0.5)
    assert set(outcome.fixed) == {*MODES, "random", "by length"}


def test_a_rival_goes_by_the_prompts_length() -> None:
    asked = WORKLOADS[0].requests(3, 40, BY_LENGTH)
    by_mode = {mode: [one.prompt_tokens for one in asked if one.mode == mode] for mode in ("device", "cloud")}
    assert len(asked) == sum(map(len, by_mode.values()))
    assert max(by_mode["device"]) < min(by_mode["cloud"])


def test_a_decision_takes_time() -> None:
    assert 0 < decision_ms(8, 8) < 1000


def test_a_model_may_be_exchanged() -> None:
    workload = next(one for one in WORKLOADS if one.name == "model exchanged")
    asked = workload.requests(3, 40)
    accepted = [[mean(one.acceptance or b"") for one in half] for half in (asked[:20], asked[20:])]
    assert mean(accepted[0]) == pytest.approx(workload.alpha, abs=0.05)
    assert mean(accepted[1]) == pytest.approx(workload.alpha_after, abs=0.05)
    assert [one.arrival_s for one in asked] == sorted(one.arrival_s for one in asked)


@pytest.mark.slow
def test_devices_may_leave_and_their_clients_are_answered_all_the_same() -> None:
    workload = next(one for one in WORKLOADS if one.name == "devices leave")
    found = judge(replace(workload, devices=4), 3, 24, [], OBJECTIVES["balanced"])
    late = [answer for answer in found.answers if answer.request.arrival_s > 8.0]
    assert all(answer.finished for answer in late)
    assert {answer.device for answer in late if answer.mode == "device"} <= {1, 3}
