"""Dollars of an account: what fits is not exceeded, and no change of the period forgives anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.admission.spending import Spending

MONTH = "2026-11-01"


@given(
    st.lists(st.tuples(st.floats(0, 2), st.floats(0, 1)), max_size=30),
    st.floats(0.01, 10),
    st.floats(0, 10),
)
def test_what_fits_is_never_too_much(wanted: list[tuple[float, float]], limit: float, before: float) -> None:
    """Each answer spends a part of what was reserved for it; all are under way at once."""
    spending = Spending()
    spending.follow(MONTH, min(before, limit))
    let_in = []
    for usd, part in wanted:
        if spending.fits(usd, MONTH, limit):
            spending.reserved += usd
            let_in.append((usd, part))
    assert spending.left(MONTH, limit) >= -1e-6
    spent = min(before, limit)
    for usd, part in let_in:
        spent += usd * part
        spending.follow(MONTH, spent)
        spending.reserved -= usd
    assert spending.periods[MONTH] <= limit + 1e-6


def test_the_ledger_knows_at_least_as_much() -> None:
    spending = Spending()
    spending.follow(MONTH, 4.0)
    spending.follow(MONTH, 2.0)  # an older answer
    assert spending.left(MONTH, 5.0) == 1.0
    spending.follow(MONTH, 4.5)  # it was spent elsewhere
    assert spending.left(MONTH, 5.0) == 0.5


def test_periods_stand_beside_each_other() -> None:
    """Around midnight, or a change of the terms, requests come with either."""
    spending = Spending()
    spending.follow("2026-11-30", 4.0)
    spending.follow("2026-12-01", 0.0)
    spending.follow("2026-11-30", 5.0)
    spending.follow("2026-12-01", 1.0)
    assert spending.periods == {"2026-11-30": 5.0, "2026-12-01": 1.0}
    for day in range(10, 20):
        spending.follow(f"2026-12-{day}", 0.0)
    assert not spending.fits(2.0, "2026-12-19", 1.0)


def test_a_limit_that_is_reached_exactly_is_not_exceeded() -> None:
    spending = Spending()
    spending.follow(MONTH, 0.1 + 0.2)
    assert spending.fits(0.7, MONTH, 1.0), "0.1 + 0.2 is more than 0.3 in binary"
    assert not spending.fits(0.71, MONTH, 1.0)
    assert spending.left("2026-12-01", 1.0) == pytest.approx(1.0)


@pytest.mark.parametrize("limit", [0.01, 1.0, 1000.0])
def test_sums_may_differ_by_a_billionth_of_the_limit(limit: float) -> None:
    spending = Spending()
    assert spending.fits(limit * (1 + 0.9e-9), MONTH, limit)
    assert not spending.fits(limit * (1 + 1.1e-9), MONTH, limit)


def test_four_periods_are_kept() -> None:
    spending = Spending()
    for day in range(10, 16):
        spending.follow(f"2026-11-{day}", 1.0)
    assert list(spending.periods) == [f"2026-11-{day}" for day in (12, 13, 14, 15)]
