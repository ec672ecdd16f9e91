"""The real cost of an answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.deployments.request.assignment import Prices
from tandem.deployments.request.job import Delta, JobStats
from tandem.deployments.request.tokenlog import Origin
from tandem.policies.routing.objectives import Objective
from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.results.loss import FAILED_S, loss_usd
from tandem.simulator.workload import Request

OBJECTIVE = Objective(second_usd=0.01, quality_usd=1.0)
REQUEST = Request(0.0, 10, 4, bytes([1, 1, 0, 1]))


def answered(request: Request, origin: Origin) -> SimulatedAnswer:
    """Return an answer whose tokens come at 1, 2, 3 and 4 s."""
    answer = SimulatedAnswer(request, 0.0, 0, keep_history=False)
    for second in (1, 2, 3, 4):
        answer.append(Delta([second], [origin], "stop" if second == 4 else None), float(second))
    answer.stats = JobStats("device", by_origin={origin: 4}, joules=5.0, prices=Prices(exchange_rate=0.1))
    return answer


def test_the_target_is_waited_for_and_paid() -> None:
    assert loss_usd(answered(REQUEST, Origin.CLOUD), OBJECTIVE) == pytest.approx(0.5 + 0.01 * 4.0)


def test_a_small_model_lacks_what_the_target_would_not_have_said() -> None:
    assert loss_usd(answered(REQUEST, Origin.DEVICE), OBJECTIVE) == pytest.approx(0.5 + 0.01 * 4.0 + 0.25)


def test_a_reader_waits_for_what_it_has_not_got() -> None:
    slow = answered(replace(REQUEST, reader_rate=0.5), Origin.CLOUD)
    assert loss_usd(slow, OBJECTIVE) == pytest.approx(0.5 + 0.01 * 1.0), "it reads a token in two seconds"


def test_a_failure_costs_a_long_wait_and_all_quality() -> None:
    failed = SimulatedAnswer(REQUEST, 0.0, 0, keep_history=False)
    assert loss_usd(failed, OBJECTIVE) == pytest.approx(0.01 * FAILED_S + 1.0)
