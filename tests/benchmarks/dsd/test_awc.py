"""Regrets are counted against the best of each scenario, and balanced over kinds of scenarios."""

from __future__ import annotations

import math

import pytest

from tandem.benchmarks.dsd.awc import Scenario, balanced, by_policy, regrets
from tandem.training.awc.scenarios import WINDOWS


def _scenario(best: int, awc: float) -> Scenario:
    return Scenario({size: 0.01 * abs(size - best) for size in WINDOWS}, {"awc": awc, "dynamic": 0.5})


def test_scenarios_that_are_best_fused_count_for_a_third() -> None:
    scenarios = [*(_scenario(1, 0.0) for _ in range(9)), _scenario(6, 0.3)]
    assert balanced(scenarios, [one.adaptive["awc"] for one in scenarios]) == pytest.approx(0.2)


def test_there_is_nothing_to_balance_in_one_kind() -> None:
    assert math.isnan(balanced([_scenario(1, 0.1)], [0.1]))


def test_the_best_single_window_is_the_one_of_the_least_mean() -> None:
    found = by_policy([_scenario(3, 0.0), _scenario(5, 0.0), _scenario(5, 0.0)])
    assert found["best single"] == pytest.approx([0.02, 0.0, 0.0])
    assert found["fused"] == pytest.approx([0.02, 0.04, 0.04])


def test_no_fixed_window_is_better_than_the_best() -> None:
    one = regrets(3, outside=False)
    assert min(one.fixed.values()) == 0
    assert set(one.fixed) == set(WINDOWS)
    assert set(one.adaptive) == {"awc", "dynamic"}
