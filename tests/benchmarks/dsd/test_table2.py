"""Bisection, the fit, and the error of a mean."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.benchmarks.dsd.setting import POOLS, READINGS, Cell
from tandem.benchmarks.dsd.table2 import (
    FIRST_SEED,
    FIXED,
    Fitted,
    Prediction,
    Run,
    _figures,
    bisect,
    crossover_ms,
)


def test_a_crossing_lies_where_the_line_between_two_points_is_zero() -> None:
    assert crossover_ms({5.0: -2.0, 15.0: -1.0, 25.0: 3.0, 35.0: 9.0}) == 17.5


def test_a_crossing_before_the_first_rtt_is_there_and_none_is_infinite() -> None:
    assert crossover_ms({5.0: 1.0, 15.0: 2.0}) == 5.0
    assert crossover_ms({5.0: -1.0, 15.0: 0.0}) == math.inf


@given(st.floats(0.011, 0.89))
def test_bisection_finds_a_value_between_the_ends(wanted: float) -> None:
    assert bisect(lambda x: x, wanted, 0.01, 0.9) == pytest.approx(wanted, rel=0.02)


def test_bisection_ends_at_an_end_where_the_value_is_beyond() -> None:
    assert bisect(lambda x: x, 5.0, 0.01, 0.9) == pytest.approx(0.9, rel=0.02)


def _prediction(awc: float) -> Prediction:
    """A prediction in which γ = 6 has the least TPOT and γ = 5 the highest throughput, and AWC has so many times the
    TPOT of the former, 2 % more with the second seed."""
    one = Prediction("GSM8K", Fitted(0.8, 150.0), READINGS[0], seeds=2, targets=3)

    def cell(run: Run) -> Cell:
        seed = 1.0 + run.seed - FIRST_SEED
        if run.window == "static":
            assert run.fixed is not None
            return Cell(10.0 - abs(run.fixed - 4.9), 0.1, seed * (0.04 + 0.001 * abs(run.fixed - 6)))
        return Cell(12.0, 0.1, seed * 0.04 * (awc + 0.02 * (seed - 1)) if run.window == "awc" else 0.05)

    trials = one.trials()
    assert len(set(trials)) == len(POOLS) * len(FIXED)
    runs = one.runs({run: cell(run) for run in trials})
    assert {run.fixed for run in runs if run.fixed} == {4, 5, 6}  # the best two in each, and `static`
    one.take({run: cell(run) for run in runs})
    return one


def test_a_prediction_is_compared_seed_by_seed_with_the_best_windows_in_hindsight() -> None:
    one, pool = _prediction(1.01), POOLS[0]
    assert (one.best(pool, "tpot_s"), one.best(pool, "throughput")) == (6, 5)
    tpot, throughput = one.regrets(pool, "awc")
    assert tpot.mean == pytest.approx(0.02)
    assert tpot.half == pytest.approx(12.71 * 0.01, rel=0.01)
    assert throughput.mean == pytest.approx(1 - 12 / 9.9)
    assert one.over("throughput", pool, "awc", "static").mean == pytest.approx(12 / 9.1 - 1)
    assert len(one.errors("tpot_s")) == 11
    assert one.error((600, 10, "static"), "throughput") == pytest.approx(9.1 / 25.8 - 1)


def test_cells_count_that_are_within_one_percent_of_the_best() -> None:
    assert _figures([_prediction(0.999)])["within_best_fixed_cells"] == len(POOLS)
    assert (
        _figures([_prediction(1.001)])["within_best_fixed_cells"] == 0
    )  # with the second seed, 1.1 % on average


def test_a_cell_that_is_worse_beyond_its_interval_is_not_counted() -> None:
    figures = _figures([_prediction(1.0)])
    assert figures["awc_over_static_cells"] == figures["awc_over_static_surely_cells"] == len(POOLS)


@pytest.mark.slow
def test_fewer_targets_have_as_much_to_do_each() -> None:
    fitted = Fitted(0.8, 60.0)
    one, all_ = (
        Run("CNN/DM", fitted, READINGS[0], targets=targets, turnovers=3).cell() for targets in (3, 20)
    )
    assert one.throughput == pytest.approx(all_.throughput, rel=0.15)
    assert one.tpot_s == pytest.approx(all_.tpot_s, rel=0.15)
