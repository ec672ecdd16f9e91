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


SERVER_QUICKER = Contestants(server_first_s=0.1, server_token_s=0.03, device_first_s=0.3, device_token_s=0.05)


def test_a_quarter_of_the_prompts_at_a_dear_server() -> None:
    """The server begins a quarter of the answers, and hands none over where 1.9 tokens are left."""
    course = expected_course(0.25, DEAR_SERVER, SERVER_QUICKER, 1000, 1.9)
    assert course == pytest.approx((0.25 * 0.1 + 0.75 * 0.3, 0.25 * 0.03 + 0.75 * 0.05, 0.25, 1.0, 0.75))
    long = expected_course(0.25, DEAR_SERVER, SERVER_QUICKER, 1000, 3.0)
    assert long.device_out == 1.0, "half a millionth is saved a token, and one is paid for the prompt"


def test_a_quarter_of_the_prompts_at_a_dear_device() -> None:
    course = expected_course(0.25, DEAR_DEVICE, TIMES, 100, 1e-5)
    assert course == pytest.approx((0.25 * 0.1 + 0.75 * 0.3, 0.25 * 0.05 + 0.75 * 0.03, 1.0, 0.25, 0.25))
    assert expected_course(0.25, DEAR_DEVICE, SERVER_QUICKER, 100, 1e-5).device_out == 0.0
    assert expected_course(0.25, DEAR_DEVICE, TIMES, 100, 1.0).device_out == 0.0, "the server goes on"


def test_the_constrained_one_goes_on_only_where_all_prompts_may_go_there() -> None:
    cheap = Costs(PerToken(1e-7, 2e-7), PerToken(0.01, 3.0), 1e-7)
    shares = [expected_course(budget, cheap, TIMES, 1, 100.0).device_out for budget in (0.5, 0.99, 1.0, 1.5)]
    assert shares == [1.0, 1.0, 0.0, 0.0]
