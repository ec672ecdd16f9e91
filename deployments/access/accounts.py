"""Accounts: who pays for requests, on which terms, and what they have cost so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tandem.deployments.request.bill import Bill
from tandem.policies.cost import MAINS_USD_PER_J
from tandem.policies.race.dispatch import Side
from tandem.policies.race.race import RaceAccount

ANONYMOUS = "anonymous"
_DEVICE = "device-"


def account_of(device: str) -> str:
    """The account of a device's requests, where there are no keys."""
    return _DEVICE + device


def device_of(account: str) -> str | None:
    """Return the device that owns the account; None if it is no device's."""
    return account.removeprefix(_DEVICE) if account.startswith(_DEVICE) else None


@dataclass(frozen=True, slots=True)
class Terms:
    """Limits of an account's next request; None for no limit.

    budget: the share of prompt tokens that the constrained endpoint may take in.
    exchange_rate: what a joule of the account's devices is worth, dollars.
    requests_per_minute, tokens_per_minute: taken in and given out.
    concurrent: answers under way at once.
    modes, devices: that it may ask for, by name.
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

    total: of all its requests.
    devices: of those with a device, by its name.
    raced: by the side that was the constrained one, the prompt tokens of the latest races, and those of them that it
        took in.
    """

    terms: Terms
    total: Bill
    devices: Mapping[str, Bill]
    raced: Mapping[Side, tuple[float, float]]


class Account:
    """terms: what holds for its next request.
    payer: its budgets, and what races need to know of it.
    bills: by device, "" for requests without one.
    """

    __slots__ = ("_terms", "bills", "payer")

    def __init__(self, terms: Terms, payer: RaceAccount) -> None:
        self.payer = payer
        self.bills: dict[str, Bill] = {}
        self.terms = terms

    @property
    def terms(self) -> Terms:
        return self._terms

    @terms.setter
    def terms(self, terms: Terms) -> None:
        self._terms = terms
        for budget in self.payer.budgets.values():
            budget.share = terms.budget

    def charge(self, device: str, bill: Bill) -> None:
        """More that was done for it, with that device or with none ("")."""
        self.bills.setdefault(device, Bill()).add(bill)

    def statement(self) -> Statement:
        total = Bill()
        for bill in self.bills.values():
            total.add(bill)
        devices = {name: bill for name, bill in self.bills.items() if name}
        raced = {side: (budget.tokens, budget.spent) for side, budget in self.payer.budgets.items()}
        return Statement(self.terms, total, devices, raced)


class Accounts:
    """By key: an API key's id, a device without one, or nobody known.

    Whoever asks for an account by `of` has seen to it that there may be one: keys are made by operators, and devices
    are registered.

    payer, budget, exchange_rate: of a new account.
    """

    def __init__(
        self, payer: Callable[[], RaceAccount], budget: float = 0.5, exchange_rate: float = MAINS_USD_PER_J
    ) -> None:
        self._payer, self.terms = payer, Terms(budget, exchange_rate)
        self._accounts: dict[str, Account] = {}

    def of(self, key: str) -> Account:
        """The account of that key, opened where there is none."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = self._new()
        return account

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def statement(self, key: str) -> Statement:
        """Return the usage of that key's account, without opening one."""
        known = self._accounts.get(key)
        return (known or self._new()).statement()

    def replace_bills(self, charges: Iterable[tuple[str, str, Bill]]) -> None:
        """Replace all usage: (account, device or "", bill)."""
        for account in self._accounts.values():
            account.bills.clear()
        for key, device, bill in charges:
            self.of(key).charge(device, bill)

    def close(self, key: str) -> None:
        """Delete the account and its usage."""
        self._accounts.pop(key, None)

    def _new(self) -> Account:
        return Account(self.terms, self._payer())
