"""Regrets are counted against the best of each scenario, and balanced over kinds of scenarios."""

from __future__ import annotations

import math

import pytest

from tandem.benchmarks.dsd.awc import ADAPTIVE, FIXED, Scenario, balanced, by_policy, regrets


def _scenario(best: int, awc: float) -> Scenario:
    return Scenario({size: 0.01 * abs(size - best) for size in FIXED}, {name: awc for name in ADAPTIVE})


def test_scenarios_that_are_best_in_the_cloud_count_for_a_third() -> None:
    scenarios = [*(_scenario(1, 0.0) for _ in range(8)), _scenario(0, 0.0), _scenario(6, 0.3)]
    assert balanced(scenarios, [one.adaptive["awc"] for one in scenarios]) == pytest.approx((0.2, 0.3))


def test_the_balanced_percentile_is_of_the_weighted_scenarios() -> None:
    scenarios = [*(_scenario(1, 2.0) for _ in range(2)), *(_scenario(6, 0.01 * i) for i in range(100))]
    values = [one.adaptive["awc"] for one in scenarios]
    assert balanced(scenarios, values)[1] == 2.0  # these two are a third
    assert balanced(scenarios, [0.0, 0.0, *values[2:]])[1] == pytest.approx(
        0.92
    )  # 5 % of all are 7.5 of these


def test_there_is_nothing_to_balance_in_one_kind() -> None:
    assert all(math.isnan(value) for value in balanced([_scenario(1, 0.1)], [0.1]))


def test_the_best_single_window_is_the_one_of_the_least_mean() -> None:
    found = by_policy([_scenario(3, 0.0), _scenario(5, 0.0), _scenario(5, 0.0)])
    assert found["best single"] == pytest.approx([0.02, 0.0, 0.0])
    assert found["fused"] == pytest.approx([0.02, 0.04, 0.04])
    assert found["alone"] == pytest.approx([0.03, 0.05, 0.05])


@pytest.mark.slow
def test_no_fixed_window_is_better_than_the_best() -> None:
    one = regrets(3, outside=False)
    assert min(one.fixed.values()) == 0
    assert set(one.fixed) == set(FIXED)
    assert set(one.adaptive) == set(ADAPTIVE)
