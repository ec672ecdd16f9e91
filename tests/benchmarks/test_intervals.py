"""Intervals over seeds."""

from __future__ import annotations

import math

import pytest

from tandem.benchmarks.intervals import HALF_WIDTH, Interval


def test_an_interval_is_students() -> None:
    mean, half = Interval.of([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / 3**0.5)
    assert Interval.of([1.5]) == (1.5, math.inf)
    assert str(Interval.of([0.015])) == "+1.5%"
    assert list(HALF_WIDTH.values()) == sorted(HALF_WIDTH.values(), reverse=True)
