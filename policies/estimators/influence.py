"""Influence: how much of what is learnt may come from one account, so that none drowns the others' reports."""

from __future__ import annotations

from tandem.policies.estimators.correction import FADE

SHARE = 0.5
"""Greatest share of one account in what is learnt, as long as there are others."""
OTHERS = 1.0
"""Reports of others, faded, below which an account counts as the only one."""
FADE_REFUSED = 0.999
"""Decay per report that is not learnt from: others that have left are forgotten."""
KEPT = 4096
"""Accounts that have not reported for longest are forgotten first."""
LARGE = 1e100
"""Unit from which on all numbers are brought back to their size."""


class Influence:
    """Numbers of reports that were learnt from, by account, faded as estimates fade."""

    def __init__(self) -> None:
        self._unit = 1.0  # that a report counts now, with which earlier ones fade
        self._all = 0.0
        self._by_account: dict[str, float] = {}  # the latest is last

    def admits(self, account: str) -> bool:
        """Count a report, and return whether it is learnt from."""
        own = self._by_account.pop(account, 0.0)
        admitted = self._all - own < OTHERS * self._unit or own <= SHARE * self._all
        self._unit /= FADE if admitted else FADE_REFUSED
        self._by_account[account] = own + admitted * self._unit
        self._all += admitted * self._unit
        if len(self._by_account) > KEPT:
            self._all -= self._by_account.pop(next(iter(self._by_account)))
        if self._unit > LARGE:
            self._all /= self._unit
            self._by_account = {name: number / self._unit for name, number in self._by_account.items()}
            self._unit = 1.0
        return admitted
