from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.cost import PerToken
from tandem.policies.race.costs import Costs
from tandem.policies.race.course import Contestants, expected_course

DEAR_SERVER = Costs(PerToken(1e-7, 6e-7), PerToken(0.01, 1.0), 1e-7)
DEAR_DEVICE = replace(DEAR_SERVER, exchange_rate=1e-3)
TIMES = Contestants(server_first_s=0.3, server_token_s=0.03, device_first_s=0.1, device_token_s=0.05)


def test_the_cheaper_one_decodes_and_the_quicker_one_begins() -> None:
    course = expected_course(1.0, DEAR_SERVER, TIMES, 100, 200.0)
    assert (course.ttft_s, course.tpot_s, course.device_out) == (0.1, 0.05, 1.0)
    course = expected_course(1.0, DEAR_DEVICE, TIMES, 100, 200.0)
    assert (course.ttft_s, course.tpot_s, course.device_out) == (0.1, 0.03, 0.0)


def test_without_a_budget_the_constrained_one_is_left_out() -> None:
    course = expected_course(0.0, DEAR_DEVICE, TIMES, 100, 200.0)
    assert (course.ttft_s, course.device_in, course.server_in) == (0.3, 0.0, 1.0)


@given(st.floats(0, 1), st.floats(0.01, 9), st.floats(0.01, 9), st.sampled_from([DEAR_SERVER, DEAR_DEVICE]))
def test_it_lies_between_its_ends(budget: float, server_s: float, device_s: float, costs: Costs) -> None:
    course = expected_course(budget, costs, Contestants(server_s, 0.03, device_s, 0.05), 50, 100.0)
    low, high = sorted((server_s, device_s))
    assert low <= course.ttft_s + 1e-12
    assert course.ttft_s <= high + 1e-12
    assert course.tpot_s == pytest.approx(0.03 + 0.02 * course.device_out)
    assert max(course.server_in, course.device_in) == 1.0
