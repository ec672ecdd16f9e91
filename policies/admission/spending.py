"""Dollars of an account in the periods of its limit: spent ones, and those reserved for answers under way."""

from __future__ import annotations

from collections.abc import Mapping

PERIODS = 4
"""Periods that are kept: around a change of the period, or of its length, some requests know only the one before."""
ROUNDING = 1e-9
"""Part of a limit that sums of floating-point numbers may differ by."""


class Spending:
    """Spent and reserved dollars of one account.

    reserved: for answers under way.
    """

    def __init__(self) -> None:
        self.reserved = 0.0
        self._spent: dict[str, float] = {}

    @property
    def periods(self) -> Mapping[str, float]:
        """Spent dollars by the first day of a period."""
        return self._spent

    def follow(self, since: str, spent: float) -> None:
        """Take over the dollars that the ledger knows of for a period: no fewer were spent since its first day."""
        self._spent[since] = max(spent, self._spent.pop(since, 0.0))  # the last one in the table
        if len(self._spent) > PERIODS:
            del self._spent[next(iter(self._spent))]

    def left(self, since: str, limit: float) -> float:
        """Return the dollars that are neither spent nor reserved, of a limit on the period from `since` on."""
        return limit - self._spent.get(since, 0.0) - self.reserved

    def fits(self, usd: float, since: str, limit: float) -> bool:
        """Return whether `usd` more can be reserved."""
        return usd <= self.left(since, limit) + ROUNDING * limit
