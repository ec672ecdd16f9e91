"""What requests have taught: the router keeps it, one for all replicas of the API, and tells each request its part.

No clock and no Ray in here: a simulation uses the same object.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from deployments.accounts import Accounts
from deployments.pairs import Pairs
from deployments.request.assignment import Prices, RoutingRequest
from deployments.rivals import Rivals
from deployments.settings import RacingSettings
from policies.cost import Used, per_million
from policies.dispatch import dispatch
from policies.migration import migration
from policies.race import Race, RaceAccount
from policies.window import StaticWindow

RACES_KEPT = 65_536
"""Races that have begun; of those that nobody reports the end of, the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an answer has taught and cost, told to the router once it is over, however it ended.

    tokens: of a complete answer; 0 of one that was broken off.
    used: tokens taken in and given out, whatever became of them.
    server_usd: dollars that the server asks for them.
    joules: that they cost the device; device_usd: what those are worth.
    taught: by mode, what its `ModeRun.report` says.
    """

    account: str
    tokens: int
    used: Used
    server_usd: float
    joules: float
    device_usd: float
    taught: Mapping[str, object] = field(default_factory=dict)


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
        self._server_price = per_million(self._settings.price_in, self._settings.price_out)
        if accounts is None:
            accounts = Accounts(self._new_payer, self._settings.budget, self._settings.exchange_rate)
        self.accounts = accounts
        self.pairs = Pairs(StaticWindow)
        self.rivals = Rivals()
        self.races: OrderedDict[int, Race] = OrderedDict()

    def prices(self, wanted: RoutingRequest) -> Prices:
        """What that request's tokens cost."""
        rate = wanted.exchange_rate
        if rate is None:
            rate = self.accounts.of(wanted.account).terms.exchange_rate
        return Prices(self._server_price, rate)

    def take_in(self, report: Report) -> None:
        """An answer is over: its tokens are paid for. What modes have learnt is theirs to take in (`Mode.learn`)."""
        ledger = self.accounts.of(report.account).ledger
        ledger.add(report.used, report.server_usd, report.joules, report.device_usd)
        if report.tokens:
            self.rivals.outputs.note(report.tokens)

    def remember(self, request: int, race: Race) -> None:
        """That race's end will be reported."""
        self.races[request] = race
        if len(self.races) > RACES_KEPT:
            self.races.popitem(last=False)

    def _new_payer(self) -> RaceAccount:
        settings = self._settings
        return RaceAccount(settings.dispatch.create(dispatch), settings.migration.create(migration))
