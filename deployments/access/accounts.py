"""Accounts: payers of requests, their limits, and their usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem.deployments.access.quota import Quota
from tandem.deployments.access.usage import DailySpending, Spent
from tandem.deployments.config.settings import AccountSettings
from tandem.deployments.request.bill import Bill, Charge
from tandem.policies.routing.objectives import Objective

ANONYMOUS = "anonymous"
_DEVICE = "device-"


def account_of(device: str) -> str:
    """Return the account of a device's requests while there are no keys."""
    return _DEVICE + device


def device_of(account: str) -> str | None:
    """Return the device that owns the account; None if it is no device's."""
    return account.removeprefix(_DEVICE) if account.startswith(_DEVICE) else None


@dataclass(frozen=True, slots=True)
class Terms(Quota):
    """Limits of an account's next request; None for no limit.

    budget: share of prompt tokens that the constrained endpoint of races may take in.
    exchange_rate: worth of a joule of the account's devices, dollars.
    modes, devices: names that it may ask for.
    expires_s: when its key expires, seconds since the epoch.
    objective: what counts for requests that bring none; no request loosens its limits.
    """

    budget: float
    exchange_rate: float
    modes: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    expires_s: float | None = None
    objective: Objective | None = None

    def objective_of(self, asked: Objective | None) -> Objective | None:
        """Return what counts for a request that asks for that, or for nothing."""
        own = self.objective
        return (own if asked is None else asked.within(own)) if own is not None else asked


@dataclass(frozen=True, slots=True)
class Statement:
    """An account as its owner sees it.

    total: bill of all its requests.
    devices: bills of requests with a device, by its name.
    usd: the server's dollars in the period of the terms.
    spent: for each limit of a mode, the tokens that count lately and those that were spent.
    """

    terms: Terms
    total: Bill
    devices: Mapping[str, Bill]
    usd: Spent
    spent: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(slots=True)
class Account:
    """An account.

    terms: terms of its next request.
    bills: bills by device, "" for requests without one.
    spending: the server's dollars by day.
    """

    terms: Terms
    bills: dict[str, Bill] = field(default_factory=dict)
    spending: DailySpending = field(default_factory=DailySpending)

    def charge(self, charge: Charge) -> None:
        """Add a bill."""
        self.bills.setdefault(charge.device, Bill()).add(charge.bill)
        self.spending.add(charge.day, charge.bill.server_usd)

    def spent(self, now_s: float) -> Spent:
        """Return the server's dollars in the period of the terms that `now_s` lies in."""
        return self.spending.since(self.terms.per, now_s)

    def statement(self, now_s: float) -> Statement:
        """Return the usage so far."""
        total = Bill()
        for bill in self.bills.values():
            total.add(bill)
        devices = {name: bill for name, bill in self.bills.items() if name}
        return Statement(self.terms, total, devices, usd=self.spent(now_s))


class Accounts:
    """Accounts by key: an API key's id, a device without one, or anonymous.

    Callers of `of` have checked that the account may exist: keys are made by operators, and devices are registered.

    terms: of a new account.
    """

    def __init__(self, settings: AccountSettings | None = None) -> None:
        self._accounts: dict[str, Account] = {}
        self.follow(settings or AccountSettings())

    def follow(self, settings: AccountSettings) -> None:
        """Take over other terms for new accounts."""
        self.terms = Terms(settings.budget, settings.exchange_rate)

    def of(self, key: str) -> Account:
        """Return the account of that key; open one if there is none."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(self.terms)
        return account

    def statement(self, key: str, now_s: float) -> Statement:
        """Return the usage of that key's account, without opening one."""
        return (self._accounts.get(key) or Account(self.terms)).statement(now_s)

    def clear_usage(self) -> None:
        """Forget all usage; limits stay."""
        for account in self._accounts.values():
            account.bills.clear()
            account.spending = DailySpending()

    def close(self, key: str) -> None:
        """Delete the account and its usage."""
        self._accounts.pop(key, None)
