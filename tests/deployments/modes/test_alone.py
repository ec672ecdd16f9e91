"""Times of a device that answers alone: what it says of itself, else what was measured, else what is assumed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.deployments.learning.report import Report
from tandem.deployments.learning.shared import DECODE_S
from tandem.deployments.modes.alone import (
    device_alone,
    draft_token_s,
    expected_tokens,
    learn_target,
    target_alone,
)
from tandem.deployments.modes.base import Surroundings
from tandem.deployments.modes.device import DeviceRouter
from tandem.deployments.request.assignment import EndpointInfo, RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.request.forecast import Forecast
from tandem.deployments.routing.assigner import Assigner
from tandem.engine.config import Strict
from tandem.policies.cost import Used
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.objectives import Estimate, Prediction
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
