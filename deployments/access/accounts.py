"""Accounts: payers of requests, their limits, and their usage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tandem.deployments.config.settings import AccountSettings
from tandem.deployments.request.bill import Bill

ANONYMOUS = "anonymous"
_DEVICE = "device-"


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
    """

    budget: float
    exchange_rate: float
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    modes: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    expires_s: float | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    """An account as its owner sees it.

    total: bill of all its requests.
    devices: bills of requests with a device, by its name.
    spent: for each limit of a mode, the tokens that count lately and those that were spent.
    """

    terms: Terms
    total: Bill
    devices: Mapping[str, Bill]
    spent: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(slots=True)
class Account:
    """An account.

    terms: terms of its next request.
    bills: bills by device, "" for requests without one.
    """

    terms: Terms
    bills: dict[str, Bill] = field(default_factory=dict)

    def charge(self, device: str, bill: Bill) -> None:
        """Add a bill of requests with that device, or without one ("")."""
        self.bills.setdefault(device, Bill()).add(bill)

    def statement(self) -> Statement:
        total = Bill()
        for bill in self.bills.values():
            total.add(bill)
        return Statement(self.terms, total, {name: bill for name, bill in self.bills.items() if name})


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

    def statement(self, key: str) -> Statement:
        """Return the usage of that key's account, without opening one."""
        return (self._accounts.get(key) or Account(self.terms)).statement()

    def replace_bills(self, charges: Iterable[tuple[str, str, Bill]]) -> None:
        """Replace all usage: (account, device or "", bill)."""
        for account in self._accounts.values():
            account.bills.clear()
        for key, device, bill in charges:
            self.of(key).charge(device, bill)

    def close(self, key: str) -> None:
        """Delete the account and its usage."""
        self._accounts.pop(key, None)
