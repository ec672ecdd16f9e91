"""Questions about usage: the periods of the calendar, and what may be asked."""

from __future__ import annotations

import pytest

from tandem.deployments.access.usage import DailySpending, NoGroup, UsageQuery, day_of, first_day

NOW_S = 1_795_600_000.0  # 2026-11-25, a Wednesday


def test_periods_begin_by_the_calendar() -> None:
    assert day_of(NOW_S) == "2026-11-25"
    assert [first_day(period, NOW_S) for period in ("day", "week", "month")] == [
        "2026-11-25",
        "2026-11-23",
        "2026-11-01",
    ]


def test_usage_is_kept_apart_by_something() -> None:
    with pytest.raises(NoGroup, match="at least one of account"):
        UsageQuery(by=())


def test_old_days_are_forgotten() -> None:
    spending = DailySpending()
    for number in range(100):
        spending.add(f"day {number:03}", 1.0)
    assert list(spending._days) == [f"day {number:03}" for number in range(60, 100)]
