"""What races have taught, and the plan of the next one: the live side of DiSCo's policies."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from pydantic import Field, field_validator

from deployments.accounts import Accounts, Ledger
from deployments.assignment import EndpointInfo
from deployments.job import Job, JobStats
from deployments.settings import PolicyChoice, Strict
from policies.contest import Contest, Known, Payer
from policies.cost import MAINS_USD_PER_J, Costs, per_million
from policies.dispatch import dispatch
from policies.migration import migration
from policies.pace import Pace
from policies.samples import Latencies, Outputs

T = TypeVar("T")

KEPT = 4096  # devices and servers that were not used for longest are forgotten first


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
    """Shared by all races of a process. chance: uniform in [0, 1)."""

    def __init__(self, settings: RacingSettings, chance: Callable[[], float] = random.random) -> None:
        self.accounts = Accounts(self._new_payer, settings.budget, settings.exchange_rate)
        self._price = per_million(settings.price_in, settings.price_out)
        self._settings, self._chance = settings, chance
        self._outputs = Outputs()
        self._servers: OrderedDict[str, Latencies] = OrderedDict()  # by model
        self._devices: OrderedDict[str, Pace] = OrderedDict()  # by name

    def contest(self, job: Job, server: EndpointInfo, device: EndpointInfo) -> Contest:
        """The race of the two over this job."""
        known = Known(
            ttft=_kept(self._servers, server.model, Latencies),
            pace=_kept(self._devices, device.name, lambda: Pace(device.rtt_s, device.prefill_token_s)),
            outputs=self._outputs,
        )
        return Contest(
            prompt=len(job.prompt),
            most=job.sampling.max_tokens,
            reader_rate=job.sampling.reader_rate,
            costs=Costs(self._price, device.joules, self._exchange_rate(job)),
            payer=self.accounts.of(job.account).payer,
            known=known,
            coin=self._chance(),
            share=job.budget,
        )

    def book(self, job: Job, stats: JobStats) -> None:
        """A job is over, in whatever mode and however it ended: its tokens are paid for."""
        server_usd = self._price.of(stats.used.server_in, stats.used.server_out)
        device_usd = stats.joules * self._exchange_rate(job)
        stats.usd = server_usd + device_usd
        ledger = Ledger(1, stats.used, server_usd, stats.joules, device_usd)
        self.accounts.of(job.account).ledger.add(ledger)
        if stats.tokens:
            self._outputs.note(stats.tokens)

    def _exchange_rate(self, job: Job) -> float:
        own = job.exchange_rate
        return self.accounts.of(job.account).exchange_rate if own is None else own

    def _new_payer(self) -> Payer:
        settings = self._settings
        return Payer(settings.dispatch.create(dispatch), settings.migration.create(migration))


def _kept(known: OrderedDict[str, T], key: str, new: Callable[[], T]) -> T:
    """What is known of a key, which thereby is the last to be forgotten."""
    found = known.get(key)
    if found is None:
        found = known[key] = new()
        if len(known) > KEPT:
            known.popitem(last=False)
    known.move_to_end(key)
    return found
