"""Answers by one endpoint: what it says of its times, else what was measured, else what is assumed; and costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.deployments.learning.report import Report
from tandem.deployments.learning.shared import DECODE_S, FIRST_S, PREFILL_S, SESSION_S, STEP_S, TOKEN_S
from tandem.deployments.modes.alone import (
    by_target,
    device_alone,
    draft_token_s,
    expected_tokens,
    kind_of,
    learn_target,
    target_alone,
)
from tandem.deployments.modes.base import Surroundings
from tandem.deployments.modes.device import DeviceRouter
from tandem.deployments.request.assignment import EndpointInfo, Prices, RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.request.forecast import Forecast
from tandem.deployments.routing.assigner import Assigner
from tandem.engine.config import Strict
from tandem.policies.cost import PerToken, Used
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.objectives import Estimate, Leaves, Prediction
from tandem.policies.routing.replica import routing


def surroundings() -> Surroundings:
    assigner = Assigner(collaboration.create("explicit"), lambda: routing.create("jsq"), 8)
    return Surroundings(assigner, lambda: 0.5)


def test_a_drafted_token_takes_as_long_as_is_known() -> None:
    around = surroundings()
    told = EndpointInfo("told", "told", "phone", decode_token_s=0.01, device=True)
    silent = EndpointInfo("silent", "silent", "phone", device=True)
    assert draft_token_s(around, silent) == DECODE_S
    for device in (told, silent):
        around.shared.device(device.name).decode.note(2 * DECODE_S)
    assert draft_token_s(around, told) == 0.01
    assert draft_token_s(around, silent) == 2 * DECODE_S


def test_only_those_beyond_the_batch_limit_wait_for_a_place() -> None:
    """An answer ends every 1/limit of the time that each takes, so four beyond wait for four such times."""
    around = surroundings()

    def first_s(sessions: int) -> float:
        replica = EndpointInfo("verifier 1", "10.0.0.1:1", "verifier", "target", sessions=sessions)
        return target_alone(around, RoutingRequest(), replica).ttft_s

    limit = around.fleet.batch_limit
    step_s = around.shared.target("target").step.step_s(limit)
    each_s = expected_tokens(around, RoutingRequest()) * step_s / limit
    assert first_s(0) == first_s(limit - 1)
    assert first_s(limit + 3) - first_s(0) == pytest.approx(4 * each_s)


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s"), [(0.4, 0.2), (0.4, 0.0), (0.0, 0.2)], ids=["both", "one token", "resumed"]
)
def test_what_came_of_a_device_is_learnt_as_of_one_alone(ttft_s: float, tpot_s: float) -> None:
    around = surroundings()
    expected = Prediction(Estimate(1.0), Estimate(0.1))
    forecast = Forecast("device", "phone", expected, expected, ("device",), load=2, prompt_tokens=10)
    report = Report(
        "me", "phone", 5, True, Bill(1, Used(10, 5), 0.0),
        mode="device", ttft_s=ttft_s, tpot_s=tpot_s, forecast=forecast,
    )  # fmt: skip
    part = DeviceRouter(Strict(), around)
    part.learn(report, None)
    times = around.shared.device("phone")
    assert times.decode.value == pytest.approx(tpot_s / 2 if tpot_s else DECODE_S)
    assert times.first.seen == (1 if ttft_s else 0)
    for other in (replace(report, mode="cloud"), replace(report, forecast=None)):
        part.learn(other, None)
    assert times.first.seen == (1 if ttft_s else 0)


@pytest.mark.parametrize("load", [1, 8, 9])
@pytest.mark.parametrize("steps", [True, False])
def test_what_came_of_a_target_is_learnt_by_its_load(load: int, steps: bool) -> None:
    around = surroundings()
    expected = Prediction(Estimate(1.0), Estimate(0.1))
    forecast = Forecast("cloud", None, expected, expected, ("cloud",), target="target", load=load)
    came = Report(
        "me", "", 5, True, Bill(1, Used(10, 5), 0.0),
        mode="cloud", ttft_s=0.4, tpot_s=0.2, forecast=forecast,
    )  # fmt: skip
    times = around.shared.target("target")
    for other in (replace(came, mode="device"), replace(came, forecast=None)):
        learn_target(around, other, "cloud")
    learn_target(around, came, "speculative")
    learn_target(around, replace(came, ttft_s=0.0, tpot_s=0.0), "cloud")
    assert (times.first.seen, times.step.seen) == (0, 0)
    learn_target(around, came, "cloud", steps)
    assert times.first.seen == (load <= around.fleet.batch_limit), (
        "of those beyond it, the wait is no prefill"
    )
    assert times.step.seen == steps


def test_a_device_is_as_quick_as_it_tells() -> None:
    around = surroundings()
    told = EndpointInfo("phone", "phone", "phone", decode_token_s=0.05, prefill_token_s=0.01, device=True)
    wanted = RoutingRequest(prompt_tokens=20)
    found = device_alone(around, wanted, told)
    assert found == (pytest.approx(20 * 0.01 + 0.05), pytest.approx(0.05), 0.0, False)
    assert device_alone(around, wanted, told) is found, "nothing is reckoned twice for one request"
    silent = EndpointInfo("silent", "silent", "phone", device=True)
    assert device_alone(around, wanted, silent).assumed


WANTED = RoutingRequest("cloud", prompt_tokens=50, sent=6, reader_rate=4.0)
PRICES = Prices(PerToken(1e-6, 2e-6), exchange_rate=1e-3)


def test_an_answer_by_a_target_costs_what_it_takes_in_and_gives_out_and_delays_the_others() -> None:
    around = surroundings()
    replica = EndpointInfo("verifier 1", "10.0.0.1:1", "verifier", "target", sessions=3)
    tokens = expected_tokens(around, WANTED)
    untold = by_target(around, WANTED, replica, PRICES)
    assert (untold.ttft_s.value, untold.tpot_s.value) == (
        pytest.approx(FIRST_S + 56 * TOKEN_S),
        pytest.approx(STEP_S + 4 * SESSION_S),
    )
    assert (untold.others_s, untold.assumed, untold.rate) == (0.0, True, 4.0)
    assert untold.usd.value == pytest.approx(56 * 1e-6 + round(tokens) * 2e-6)
    assert untold.tokens == tokens == 128.0
    times = around.shared.target("target")
    for sessions, seconds in ((1, 0.01), (9, 0.05), (1, 0.01)):
        times.step.note(sessions, seconds)
    for _ in range(2):
        times.first.note(50, 0.4)
    times.rates.extend([0.0, 1.0])  # one waits for the end, the other reads slowly
    told = by_target(around, replace(WANTED), replica, PRICES)
    assert told.others_s == pytest.approx(4 * 0.5 * times.step.token_s * (tokens + 50))
    assert told.others_s > 0.0
    assert not told.assumed


def test_what_others_prompts_still_take_comes_before_a_first_token() -> None:
    around = surroundings()
    fleet = around.fleet
    assert isinstance(fleet, Assigner)
    replica = EndpointInfo("verifier 1", "10.0.0.1:1", "verifier", "target")
    fleet._prompts[replica.key] = (100.0, fleet._now_s)
    first_s = target_alone(around, RoutingRequest(prompt_tokens=50), replica).ttft_s
    assert first_s == pytest.approx(FIRST_S + 150 * TOKEN_S)


@pytest.mark.parametrize("told", [True, False])
def test_an_answer_by_a_device_costs_energy_and_lacks_what_its_model_does_not_know(told: bool) -> None:
    around = surroundings()
    speed = {"decode_token_s": 0.05, "prefill_token_s": 0.01} if told else {}
    phone = EndpointInfo(
        "phone",
        "phone",
        "phone",
        "small",
        rtt_s=0.02,
        device=True,
        joules=PerToken(0.5, 2.0),
        load_s=3.0,
        **speed,
    )
    if not told:
        for _ in range(2):
            around.shared.device("phone").first.note(56, 0.6)
            around.shared.device("phone").decode.note(0.07)
    around.shared.agreement("small").note(60, 100)
    expected = DeviceRouter(Strict(), around).predict(WANTED, {"device": phone}, PRICES)
    tokens = expected_tokens(around, WANTED)
    assert expected.ttft_s.value == pytest.approx(3.0 + (0.02 + 56 * 0.01 + 0.05 if told else 0.6))
    assert expected.tpot_s.value == pytest.approx(0.05 if told else 0.07)
    joules = 56 * 0.5 + round(tokens) * 2.0
    assert (expected.joules.value, expected.usd.value) == (joules, pytest.approx(joules * 1e-3))
    assert expected.lost == around.shared.agreement("small").lost
    assert (expected.leaves, expected.tokens, expected.rate) == (Leaves.NOTHING, tokens, 4.0)
    assert not expected.assumed


def test_a_device_that_was_seen_once_counts_as_assumed() -> None:
    around = surroundings()
    silent = EndpointInfo("silent", "silent", "phone", rtt_s=0.02, device=True)
    unseen = device_alone(around, WANTED, silent)
    assert unseen == (pytest.approx(0.02 + 56 * PREFILL_S + DECODE_S), DECODE_S, 0.0, True)
    around.shared.device("silent").first.note(56, 0.6)
    around.shared.device("silent").decode.note(0.07)
    assert device_alone(around, replace(WANTED), silent) == (pytest.approx(0.6), 0.07, 0.0, True)
    around.shared.device("silent").first.note(56, 0.6)
    assert not device_alone(around, replace(WANTED), silent).assumed


def test_requests_of_one_account_about_as_long_are_of_one_kind() -> None:
    around = surroundings()
    kinds = [
        kind_of(around, RoutingRequest(account=account, max_tokens=most, prompt_tokens=prompt))
        for account, most, prompt in (
            ("me", 100, 50), ("me", 127, 63), ("me", 128, 50), ("me", 100, 64), ("you", 100, 50)
        )
    ]  # fmt: skip
    assert kinds[0] == kinds[1]
    assert len(set(kinds)) == 4
