"""Forecasts beside what came."""

from __future__ import annotations

import pytest

from tandem.deployments.request.forecast import SHORT, Compared, Forecast
from tandem.policies.routing.objectives import Estimate, Prediction

EXPECTED = Prediction(ttft_s=Estimate(0.2), tpot_s=Estimate(0.05), usd=Estimate(0.0))
FORECAST = Forecast("device", "phone", EXPECTED, EXPECTED, ("device",))


@pytest.mark.parametrize(("tokens", "figures"), [(SHORT - 1, ["ttft_s"]), (SHORT, ["ttft_s", "tpot_s"])])
def test_a_short_answer_tells_no_time_per_token(tokens: int, figures: list[str]) -> None:
    compared = FORECAST.compared(0.1, 0.1, tokens)
    assert [each.figure for each in compared] == figures
    assert [each.ratio for each in compared] == pytest.approx([0.5, 2.0][: len(figures)])


def test_times_that_did_not_come_are_not_compared() -> None:
    assert FORECAST.compared(0.0, 0.0, SHORT) == []
    unknown = FORECAST._replace(expected=EXPECTED._replace(ttft_s=Estimate(0.0)))
    assert unknown.compared(0.1, 0.0, SHORT) == []


@pytest.mark.parametrize(("ttft_s", "held"), [(0.13, False), (0.14, True), (0.29, True), (0.3, False)])
def test_a_time_is_held_against_its_interval(ttft_s: float, held: bool) -> None:
    """Eight in ten lie within e^±(1.28 · 0.3) of the median."""
    expected = EXPECTED._replace(ttft_s=Estimate(0.2, noise=0.3))
    assert FORECAST._replace(expected=expected).compared(ttft_s, 0.0, 0) == [
        Compared("ttft_s", pytest.approx(ttft_s / 0.2), held)
    ]


def test_an_interval_has_its_ends() -> None:
    expected = Estimate(0.2, noise=0.3)
    held = FORECAST._replace(expected=EXPECTED._replace(ttft_s=expected))
    assert [held.compared(end_s, 0.0, 0)[0].held for end_s in expected.interval] == [True, True]


def test_without_a_target_nothing_is_expected_of_it() -> None:
    assert (FORECAST.target, FORECAST.load, FORECAST.prompt_tokens, FORECAST.token_s) == ("", 0, 1, 0.0)
