from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.simulator.hardware.interpolate import Curve, Grid


def test_a_curve_goes_through_its_points_and_straight_between_them() -> None:
    curve = Curve([(4, 8.0), (1, 2.0), (2, 4.0), (2, 6.0)])
    assert [curve.at(x) for x in (1, 2, 3, 4)] == [2.0, 5.0, 6.5, 8.0]


def test_beyond_its_ends_a_curve_stays_low_and_keeps_its_slope_high() -> None:
    curve = Curve([(1, 2.0), (2, 4.0), (4, 5.0)])
    assert curve.at(0) == 2.0
    assert curve.at(8) == 7.0


def test_a_curve_needs_a_point() -> None:
    with pytest.raises(ValueError, match="at least one point"):
        Curve([])


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=20), st.floats(0, 100)
)
def test_between_its_ends_a_curve_stays_within_its_values(points: list[tuple[int, int]], x: float) -> None:
    curve = Curve(points)
    x = min(max(x, curve.xs[0]), curve.xs[-1])
    assert min(curve.ys) - 1e-9 <= curve.at(x) <= max(curve.ys) + 1e-9


def test_a_grid_is_straight_in_both_directions() -> None:
    grid = Grid({1: [(0, 1.0), (10, 3.0)], 3: [(0, 5.0), (10, 9.0)]})
    assert grid.at(1, 5) == 2.0
    assert grid.at(2, 5) == 4.5
    assert grid.at(3, 10) == 9.0
    assert grid.at(5, 0) == 9.0  # the rows' slope goes on
    assert grid.at(0, 0) == 1.0
    assert sorted(grid.points()) == [(1, 0, 1.0), (1, 10, 3.0), (3, 0, 5.0), (3, 10, 9.0)]
