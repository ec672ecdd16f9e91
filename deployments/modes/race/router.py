"""Mode race at the router: plans races, keeps the budgets' books, and learns how long endpoints take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandem.deployments.learning.report import Report
from tandem.deployments.lru import LRUTable
from tandem.deployments.modes.alone import agreement, device_alone, expected_tokens, target_alone
from tandem.deployments.modes.base import RouterPart, Surroundings
from tandem.deployments.modes.race.latencies import Rivals
from tandem.deployments.modes.race.settings import RaceSettings
from tandem.deployments.request.assignment import Endpoints, Prices, RoutingRequest
from tandem.policies.race.costs import Costs
from tandem.policies.race.course import Contestants, expected_course
from tandem.policies.race.dispatch import Side, Start
from tandem.policies.race.migration import MigrationPolicy
from tandem.policies.race.race import Race, RaceAccount, RaceRequest, RaceSnapshot
from tandem.policies.routing.objectives import Estimate, Prediction

ACCOUNTS_KEPT = 65_536
"""Accounts that have not raced for longest are forgotten first."""
RACES_KEPT = 65_536
"""Most races under way; of those whose end is never reported, the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class RaceBriefing:
    """start: who starts when.
    limit: tokens that the constrained endpoint may take in, as long as the other one has not failed.
    costs: of server and device.
    migration: decides when the answer moves on.
    history: what all processes know of the two.
    """

    start: Start
    limit: float
    costs: Costs
    migration: MigrationPolicy
    history: RaceSnapshot


Event = tuple[str, Side, int, float]
"""An event: a method of Race, the side, tokens (taken in), seconds."""


@dataclass(frozen=True, slots=True)
class Taught:
    """events: of a request's race."""

    events: list[Event]


class RaceRouter(RouterPart[RaceSettings]):
    """accounts: budgets and books, by account.
    rivals: servers and devices.
    races: that have begun and were not reported yet, by request.
    """

    def __init__(self, settings: RaceSettings, router: Surroundings) -> None:
        super().__init__(settings, router)
        self.accounts: LRUTable[str, RaceAccount] = LRUTable(ACCOUNTS_KEPT)
        self.rivals = Rivals(router.shared.lengths)
        self.races: LRUTable[int, Race] = LRUTable(RACES_KEPT)

    def follow(self, settings: RaceSettings) -> None:
        super().follow(settings)
        for account in self.accounts.values():
            account.dispatch, account.migration = settings.dispatch.create(), settings.migration.create()

    def brief(self, wanted: RoutingRequest, endpoints: Endpoints, prices: Prices) -> RaceBriefing:
        server, device = endpoints["server"], endpoints["device"]
        history, account = self.rivals.of(server, device), self._account(wanted.account)
        costs = Costs(prices.server, device.joules, prices.exchange_rate)
        race = self.races.get(wanted.request)
        if race is None:  # otherwise it goes on with other endpoints
            race = self.races[wanted.request] = Race(
                RaceRequest(wanted.prompt_tokens, wanted.max_tokens, wanted.reader_rate, wanted.budget),
                costs,
                account,
                history,
                self.router.random.random(),
            )
        return RaceBriefing(race.start, race.limit, costs, account.migration, history.snapshot())

    def predict(self, wanted: RoutingRequest, endpoints: Endpoints, prices: Prices) -> Prediction:
        server, device = endpoints["server"], endpoints["device"]
        known, tokens = wanted.prompt_tokens + wanted.sent, expected_tokens(self.router, wanted)
        costs = Costs(prices.server, device.joules, prices.exchange_rate)
        account = self.accounts.get(wanted.account)
        budget = None if account is None else account.budgets[costs.constrained]
        share = self.router.budget() if wanted.budget is None else wanted.budget
        there, here = (
            target_alone(self.router, wanted, server),
            device_alone(self.router, wanted, device),
        )
        course = expected_course(
            share if budget is None else budget.next(share),
            costs,
            Contestants(there.ttft_s, there.tpot_s, here.ttft_s, here.tpot_s),
            known,
            tokens,
        )
        joules = device.joules.of(round(known * course.device_in), round(tokens * course.device_out))
        server_usd = prices.server.of(
            round(known * course.server_in), round(tokens * (1.0 - course.device_out))
        )
        return Prediction(
            ttft_s=Estimate(course.ttft_s),
            tpot_s=Estimate(course.tpot_s),
            usd=Estimate(server_usd + joules * prices.exchange_rate),
            joules=Estimate(joules),
            lost=agreement(self.router, wanted, device.model).lost.times(course.device_out),
            tokens=tokens,
            rate=wanted.reader_rate,
            others_s=there.others_s * (1.0 - course.device_out),
            assumed=there.assumed or here.assumed,
        )

    def learn(self, report: Report, taught: object) -> None:
        if not isinstance(taught, Taught):
            return
        race = self.races.pop(report.request, None)
        if race is None:
            return  # a router that has died planned it
        for what, side, tokens, seconds in taught.events:
            match what:
                case "took_in":
                    race.took_in(side, tokens)
                case "first_token":
                    race.first_token(side, tokens, seconds)
                case "resumed":
                    race.resumed(side, tokens, seconds)
                case "stopped":
                    race.stopped(side, seconds)
        used = report.bill.used
        race.over({Side.SERVER: used.server_in, Side.DEVICE: used.device_in})

    def spent(self, account: str) -> Mapping[str, tuple[float, float]]:
        """Return, by constrained side, the latest races' prompt tokens and those of them that the side took in."""
        known = self.accounts.get(account) or self._new_account()
        return {str(side): (budget.tokens, budget.spent) for side, budget in known.budgets.items()}

    def _account(self, key: str) -> RaceAccount:
        """Return the account of that key, with the budget of requests that bring none."""
        account = self.accounts.of(key, self._new_account)
        for budget in account.budgets.values():
            budget.share = self.router.budget()
        return account

    def _new_account(self) -> RaceAccount:
        return RaceAccount(self.settings.dispatch.create(), self.settings.migration.create())
