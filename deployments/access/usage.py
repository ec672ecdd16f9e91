"""Usage as it is asked for: sums of bills by account, day, mode, model, device and team; dollars by period."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal, NamedTuple

from tandem.deployments.request.bill import Bill

Group = Literal["account", "day", "mode", "model", "device", "team"]
Period = Literal["day", "week", "month"]
"""Days, weeks from Monday on, and months of the calendar, all UTC."""

_DAYS = 40  # more than a period has
LONGEST_PERIOD = timedelta(days=31)


class NoGroup(ValueError):
    """A question about usage keeps nothing apart."""


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """A question about usage. Raises NoGroup.

    account: whose; None: of all accounts.
    start, end: first and last day, UTC, as 2026-11-25. Usage from before days were kept is on day "".
    by: what the sums are kept apart by, at least one group.
    """

    account: str | None = None
    start: str = ""
    end: str = "9999-12-31"
    by: tuple[Group, ...] = ("account", "day", "mode")

    def __post_init__(self) -> None:
        if not self.by:
            raise NoGroup("usage is kept apart by at least one of account, day, mode, model, device and team")


class Usage(NamedTuple):
    """A sum of bills. place: values of the query's groups, in their order."""

    place: tuple[str, ...]
    bill: Bill


class Spent(NamedTuple):
    """The server's dollars of an account since the period's first day."""

    since: str
    usd: float


class DailySpending:
    """The server's dollars by day, the last ones."""

    def __init__(self) -> None:
        self._days: dict[str, float] = {}

    def add(self, day: str, usd: float) -> None:
        """Count dollars of a day."""
        self._days[day] = self._days.get(day, 0.0) + usd
        if len(self._days) > _DAYS:
            del self._days[min(self._days)]

    def since(self, period: Period, now_s: float) -> Spent:
        """Return the dollars of the period that a time lies in."""
        since = first_day(period, now_s)
        return Spent(since, sum(usd for day, usd in self._days.items() if day >= since))


def day_of(now_s: float) -> str:
    """Return the day of a time in seconds since the epoch."""
    return _date(now_s).isoformat()


def first_day(period: Period, now_s: float) -> str:
    """Return the first day of the period that a time lies in."""
    today = _date(now_s)
    match period:
        case "day":
            return today.isoformat()
        case "week":
            return (today - timedelta(days=today.weekday())).isoformat()
    return today.replace(day=1).isoformat()


def recent(now_s: float) -> str:
    """Return a day that no period which lasts now began before."""
    return (_date(now_s) - LONGEST_PERIOD).isoformat()


def _date(now_s: float) -> date:
    return datetime.fromtimestamp(now_s, UTC).date()
