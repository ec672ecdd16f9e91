from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.simulator.hardware.interpolate import Chunks, Curve, Grid


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


def test_noise_at_its_end_turns_no_curve_around() -> None:
    """Time grows by 1 a token; the last two points alone would say that it falls."""
    curve = Curve([(x, float(x)) for x in range(1, 100)] + [(100, 97.0)])
    assert curve.at(1000) == pytest.approx(1000, rel=0.05)
    falling = Curve([(1, 3.0), (2, 2.0), (3, 1.0)])
    assert falling.at(10) == 1.0
    rows = {row: [(0, float(row)), (10, row + 10.0)] for row in range(1, 100)} | {
        100: [(0, 97.0), (10, 107.0)]
    }
    assert Grid(rows).at(200, 0) == pytest.approx(200, rel=0.05)


def test_chunks_beyond_what_tells_how_they_grow_are_computed_in_pieces() -> None:
    """A position costs 1 and 0.01 a token before it. 400 tokens were profiled with nothing before them, and slow."""

    def cost(length: float, before: float) -> float:
        return length * (1 + 0.01 * (before + length / 2))

    profiled = {
        length: [(before, cost(length, before)) for before in range(0, 300, 50)] for length in (100, 200)
    }
    chunks = Chunks({**profiled, 400: [(0, 5000.0)]})
    assert chunks.at(200, 120) == pytest.approx(cost(200, 120), rel=0.01)
    assert chunks.at(800, 1000) == pytest.approx(cost(800, 1000), rel=0.01)
    assert (400, 0, 5000.0) in list(chunks.points())
