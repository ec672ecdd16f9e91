"""Accounts: payers of requests, their limits, and their usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem.deployments.access.usage import Period, Spent, first_day
from tandem.deployments.config.settings import AccountSettings
from tandem.deployments.request.bill import Bill, Charge

ANONYMOUS = "anonymous"
_DEVICE = "device-"
_DAYS = 40  # more than a period has


def account_of(device: str) -> str:
    """Return the account of a device's requests while there are no keys."""
    return _DEVICE + device


def device_of(account: str) -> str | None:
    """Return the device that owns the account; None if it is no device's."""
    return account.removeprefix(_DEVICE) if account.startswith(_DEVICE) else None


@dataclass(frozen=True, slots=True)
class Terms:
    """Limits of an account's next request; None for no limit.

    budget: share of prompt tokens that the constrained endpoint of races may take in.
    exchange_rate: worth of a joule of the account's devices, dollars.
    requests_per_minute: most requests in a minute.
    tokens_per_minute: most tokens in a minute, taken in and given out.
    concurrent: most answers under way at once.
    modes, devices: names that it may ask for.
    expires_s: when its key expires, seconds since the epoch.
    usd: most dollars that the server's tokens may cost in a period.
    per: that period.
    """

    budget: float
    exchange_rate: float
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    modes: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    expires_s: float | None = None
    usd: float | None = None
    per: Period = "month"


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
    days: the server's dollars by day, the last ones.
    """

    terms: Terms
    bills: dict[str, Bill] = field(default_factory=dict)
    days: dict[str, float] = field(default_factory=dict)

    def charge(self, charge: Charge) -> None:
        """Add a bill."""
        self.bills.setdefault(charge.device, Bill()).add(charge.bill)
        self.spend(charge.day, charge.bill.server_usd)

    def spend(self, day: str, usd: float) -> None:
        """Count the server's dollars of a day."""
        self.days[day] = self.days.get(day, 0.0) + usd
        if len(self.days) > _DAYS:
            del self.days[min(self.days)]

    def spent(self, now_s: float) -> Spent:
        """Return the server's dollars in the period of the terms that `now_s` lies in."""
        since = first_day(self.terms.per, now_s)
        return Spent(since, sum(usd for day, usd in self.days.items() if day >= since))

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
            account.days.clear()

    def close(self, key: str) -> None:
        """Delete the account and its usage."""
        self._accounts.pop(key, None)
