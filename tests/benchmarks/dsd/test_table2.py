"""Bisection, the fit, and the error of a mean."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.benchmarks.dsd.setting import POOLS, READINGS, Cell
from tandem.benchmarks.dsd.table2 import (
    FIXED,
    HALF_WIDTH,
    Fitted,
    Interval,
    Prediction,
    Run,
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


def test_an_interval_is_students() -> None:
    mean, half = Interval.of([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / 3**0.5)
    assert Interval.of([1.5]) == (1.5, math.inf)
    assert str(Interval.of([0.015])) == "+1.5%"
    assert list(HALF_WIDTH.values()) == sorted(HALF_WIDTH.values(), reverse=True)


def test_a_prediction_is_compared_seed_by_seed_with_the_best_window_in_hindsight() -> None:
    one = Prediction("GSM8K", Fitted(0.8, 150.0), READINGS[0], seeds=2)
    runs = one.runs()
    assert len(set(runs)) == len(runs) == len(POOLS) * 2 * (3 + len(FIXED))

    def cell(run: Run) -> Cell:
        """γ = 6 is the best; AWC is 1 % and 3 % above it."""
        seed = 1.0 + run.seed
        if run.fixed is not None:
            return Cell(10.0, 0.1, seed * (0.04 + 0.001 * abs(run.fixed - 6)))
        return Cell(12.0 if run.window == "awc" else 10.0, 0.1, seed * 0.04 * (1.01 + 0.02 * run.seed))

    one.take({run: cell(run) for run in runs})
    assert set(one.best.values()) == {6}
    assert one.regret(POOLS[0]).mean == pytest.approx(0.02)
    assert one.regret(POOLS[0]).half == pytest.approx(12.71 * 0.01, rel=0.01)
    assert one.against("throughput", POOLS[0], "static").mean == pytest.approx(0.2)
    assert len(one.errors("tpot_s")) == 11
    assert one.error((600, 10, "static"), "throughput") == pytest.approx(10 / 25.8 - 1)
