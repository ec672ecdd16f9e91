"""Learned state of requests: the router keeps it, one for all replicas of the API, and tells each request its part.

No clock and no Ray in here: a simulation uses the same object.
"""

from __future__ import annotations

from random import Random

from tandem.deployments.access.accounts import Accounts
from tandem.deployments.config.settings import RacingSettings
from tandem.deployments.learning.draft_pairs import Pairs
from tandem.deployments.learning.latencies import Rivals
from tandem.deployments.learning.report import Report
from tandem.deployments.lru import Kept
from tandem.deployments.request.assignment import Prices, RoutingRequest
from tandem.policies.cost import per_million
from tandem.policies.race.race import Race, RaceAccount
from tandem.policies.speculation.window import StaticWindow

RACES_KEPT = 65_536
"""Races that have begun; of those that nobody reports the end of, the oldest are forgotten."""


class Experience:
    """random: for what policies decide by chance.

    accounts: budgets and books.
    pairs: of drafters and targets; nobody chooses windows here.
    rivals: servers and devices.
    races: that have begun and were not reported yet, by request.
    """

    def __init__(
        self,
        settings: RacingSettings | None = None,
        random: Random | None = None,
        accounts: Accounts | None = None,
    ) -> None:
        self._settings, self.random = settings or RacingSettings(), random or Random()
        if accounts is None:
            accounts = Accounts(self._new_payer, self._settings.budget, self._settings.exchange_rate)
        self.accounts = accounts
        self.pairs = Pairs(StaticWindow)
        self.rivals = Rivals()
        self.races: Kept[int, Race] = Kept(RACES_KEPT)

    def follow(self, settings: RacingSettings) -> None:
        """Other prices and policies, from now on; accounts that there are keep their terms."""
        self._settings = settings
        for account in self.accounts:
            account.payer.dispatch = settings.dispatch.create()
            account.payer.migration = settings.migration.create()

    def prices(self, wanted: RoutingRequest) -> Prices:
        """Return the prices of that request's tokens."""
        rate = wanted.exchange_rate
        if rate is None:
            rate = self.accounts.of(wanted.account).terms.exchange_rate
        settings = self._settings
        return Prices(per_million(settings.price_in, settings.price_out), rate)

    def take_in(self, report: Report) -> None:
        """An answer is over: its tokens are paid for. What modes have learnt is theirs to take in (`Mode.learn`)."""
        self.accounts.of(report.account).charge(report.device, report.bill)
        if report.whole:
            self.rivals.outputs.note(report.tokens)

    def _new_payer(self) -> RaceAccount:
        settings = self._settings
        return RaceAccount(settings.dispatch.create(), settings.migration.create())
