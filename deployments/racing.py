"""What races have taught, and the plan of the next one: the live side of DiSCo's policies."""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from pydantic import Field, field_validator

from cluster.tokenlog import Origin
from deployments.accounts import Accounts
from deployments.assignment import EndpointInfo
from deployments.job import Job, JobStats
from deployments.settings import PolicyChoice, Strict
from policies.budget import Budget
from policies.cost import MAINS_USD_PER_J, Costs, per_million
from policies.dispatch import Constrained, DispatchPolicy, DispatchState, Start, dispatch
from policies.migration import MigrationPolicy, MigrationState, migration
from policies.pace import Pace
from policies.quality import Reader
from policies.samples import Latencies, Outputs

T = TypeVar("T")

KEPT = 4096  # devices and servers that were not used for longest are forgotten first
CAUTIOUS = 0.9  # quantile of the server's times to first token that a hand-over reckons with


class RacingSettings(Strict):
    """dispatch: who starts when; migration: who goes on. price_in, price_out: of the server, dollars for a million
    tokens. budget: of a new account, the share of prompt tokens for the constrained endpoint; exchange_rate: what
    a joule of a new account's devices is worth, dollars.
    """

    dispatch: PolicyChoice = PolicyChoice(name="disco")
    migration: PolicyChoice = PolicyChoice(name="buffered")
    price_in: float = Field(0.15, ge=0)
    price_out: float = Field(0.60, ge=0)
    budget: float = Field(0.5, ge=0, le=1)
    exchange_rate: float = Field(MAINS_USD_PER_J, ge=0)

    @field_validator("dispatch")
    @classmethod
    def _dispatch_exists(cls, choice: PolicyChoice) -> PolicyChoice:
        choice.create(dispatch)
        return choice

    @field_validator("migration")
    @classmethod
    def _migration_exists(cls, choice: PolicyChoice) -> PolicyChoice:
        choice.create(migration)
        return choice


class Racing:
    """Shared by all races of a process. clock: seconds; chance: uniform in [0, 1)."""

    def __init__(
        self,
        settings: RacingSettings,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.accounts = Accounts(settings.budget, settings.exchange_rate)
        self.outputs = Outputs()
        self.price = per_million(settings.price_in, settings.price_out)
        self.clock = clock
        self._settings, self._chance = settings, chance
        self._servers: OrderedDict[str, Latencies] = OrderedDict()  # by model
        self._devices: OrderedDict[str, Pace] = OrderedDict()  # by name
        self._policies: OrderedDict[str, tuple[DispatchPolicy, MigrationPolicy]] = OrderedDict()  # by account

    def referee(self, job: Job, server: EndpointInfo, device: EndpointInfo) -> Referee:
        """For a race of the two over this job."""
        costs = Costs(self.price, device.joules, self._exchange_rate(job))
        ttft = _kept(self._servers, server.model, Latencies)
        pace = _kept(self._devices, device.name, lambda: Pace(device.rtt_s, device.prefill_token_s))
        starting, migrating = _kept(self._policies, job.account, self._new_policies)
        account = self.accounts.of(job.account)
        budget = account.budgets[costs.constrained]
        account.lengths.note(len(job.prompt))
        state = DispatchState(
            tokens=len(job.prompt),
            lengths=account.lengths,
            ttft=ttft,
            budget=budget.next(job.budget),
            constrained=costs.constrained,
            coin=self._chance(),
        )
        return Referee(
            job, starting.choose(state), costs, ttft, pace, self.outputs, migrating, budget, self.clock
        )

    def book(self, job: Job, stats: JobStats) -> None:
        """A job is over, in whatever mode and however it ended: its tokens are paid for."""
        server_usd = self.price.of(stats.used.server_in, stats.used.server_out)
        device_usd = stats.joules * self._exchange_rate(job)
        stats.usd = server_usd + device_usd
        self.accounts.of(job.account).book(stats.used, server_usd, stats.joules, device_usd)
        if stats.tokens:
            self.outputs.note(stats.tokens)

    def _exchange_rate(self, job: Job) -> float:
        own = job.exchange_rate
        return self.accounts.of(job.account).exchange_rate if own is None else own

    def _new_policies(self) -> tuple[DispatchPolicy, MigrationPolicy]:
        settings = self._settings
        return settings.dispatch.create(dispatch), settings.migration.create(migration)


class Referee:
    """Of one race: `deployments.plans.race.Referee`. start: who starts when."""

    def __init__(
        self,
        job: Job,
        start: Start,
        costs: Costs,
        ttft: Latencies,
        pace: Pace,
        outputs: Outputs,
        migrating: MigrationPolicy,
        budget: Budget,
        clock: Callable[[], float],
    ) -> None:
        self.start = start
        self._job, self._ttft, self._pace, self._outputs = job, ttft, pace, outputs
        self._migrating, self._budget, self._clock = migrating, budget, clock
        constrained = costs.constrained
        self._constrained = Origin.DEVICE if constrained is Constrained.DEVICE else Origin.CLOUD
        self._prices = {Origin.CLOUD: costs.server, Origin.DEVICE: costs.device_usd}
        self._begun: set[Origin] = set()
        self._decided = False
        rate = job.sampling.reader_rate
        self._reader = Reader(rate) if rate else None

    def began(self, origin: Origin) -> None:
        self._begun.add(origin)

    def first_token(self, origin: Origin, known: int, seconds: float) -> None:
        if origin is Origin.DEVICE:
            self._pace.note(known, seconds)
        elif not self._decided:
            self._ttft.note(seconds)
        if not self._decided:  # the race is over: what it spent of the budget is known
            self._decided = True
            self._budget.note(len(self._job.prompt), self._constrained in self._begun, self._job.budget)

    def stopped(self, origin: Origin, seconds: float) -> None:
        if origin is Origin.CLOUD:
            self._ttft.note_longer(seconds)

    def delivered(self, tokens: int) -> None:
        if self._reader is not None:
            self._reader.deliver(tokens, self._clock())

    def hand_over(self, origin: Origin, sent: int) -> bool:
        target = Origin.DEVICE if origin is Origin.CLOUD else Origin.CLOUD
        source_price, target_price = self._prices[origin], self._prices[target]
        if source_price.decode <= target_price.decode:
            return False
        known = len(self._job.prompt) + sent
        migration_s = 0.0  # does not matter if nobody reads along
        if self._reader is not None:
            to_device = target is Origin.DEVICE
            migration_s = self._pace.step_s(known) if to_device else self._ttft.quantile(CAUTIOUS)
        state = MigrationState(
            known=known,
            remaining=self._outputs.remaining(sent, self._job.sampling.max_tokens),
            source=source_price,
            target=target_price,
            migration_s=migration_s,
            reader_rate=self._job.sampling.reader_rate,
            ahead=0.0 if self._reader is None else self._reader.buffer(self._clock()),
        )
        return self._migrating.due(state)


def _kept(known: OrderedDict[str, T], key: str, new: Callable[[], T]) -> T:
    """What is known of a key, which thereby is the last to be forgotten."""
    found = known.get(key)
    if found is None:
        found = known[key] = new()
        if len(known) > KEPT:
            known.popitem(last=False)
    known.move_to_end(key)
    return found
