"""Accounts: who pays for requests, within which budget, and what they have cost so far."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from policies.contest import Payer
from policies.cost import MAINS_USD_PER_J, Used
from policies.dispatch import Side

KEPT = 10_000  # accounts that were not used for longest are forgotten first


@dataclass(slots=True)
class Ledger:
    """What requests have cost. used: tokens at both kinds of endpoint; server_usd: dollars that the server asks for
    them; joules: spent by devices; device_usd: what those were worth when they were spent."""

    requests: int = 0
    used: Used = field(default_factory=Used)
    server_usd: float = 0.0
    joules: float = 0.0
    device_usd: float = 0.0

    def add(self, other: Ledger) -> None:
        self.requests += other.requests
        self.used.add(other.used)
        self.server_usd += other.server_usd
        self.joules += other.joules
        self.device_usd += other.device_usd


@dataclass(frozen=True, slots=True)
class Terms:
    """What an account's owner may settle. budget: the share of prompt tokens that the constrained endpoint may take in;
    exchange_rate: what a joule of the account's devices is worth, dollars; changed_at: when they were settled, Unix
    time in seconds, 0 where that is left to the application."""

    budget: float
    exchange_rate: float
    changed_at: float


@dataclass(frozen=True, slots=True)
class Statement:
    """An account as its owner sees it. raced: by the side that was the constrained one, the prompt tokens of the
    latest races, and those of them that it took in."""

    terms: Terms
    ledger: Ledger
    raced: dict[Side, tuple[float, float]]

    @classmethod
    def total(cls, parts: Sequence[Statement]) -> Statement:
        """What several replicas of the API, one at least, know of one account."""
        ledger = Ledger()
        for part in parts:
            ledger.add(part.ledger)
        raced = {
            side: (sum(part.raced[side][0] for part in parts), sum(part.raced[side][1] for part in parts))
            for side in Side
        }
        latest = max((part.terms for part in parts), key=lambda terms: terms.changed_at)
        return cls(latest, ledger, raced)


@dataclass(slots=True)
class Account:
    """exchange_rate, changed_at: see Terms. payer: its budgets, and what races need to know of it. ledger: of all
    requests that are over."""

    exchange_rate: float
    payer: Payer
    ledger: Ledger = field(default_factory=Ledger)
    changed_at: float = 0.0

    @property
    def budget(self) -> float:
        """The share of prompt tokens that the constrained endpoint may take in."""
        return self.payer.budgets[Side.SERVER].share

    @budget.setter
    def budget(self, share: float) -> None:
        for budget in self.payer.budgets.values():
            budget.share = share

    @property
    def terms(self) -> Terms:
        return Terms(self.budget, self.exchange_rate, self.changed_at)

    def change(self, budget: float | None, exchange_rate: float | None, now_s: float) -> None:
        """Counts from the next request on; what is None stays as it is. now_s: Unix time."""
        if budget is not None:
            self.budget = budget
        if exchange_rate is not None:
            self.exchange_rate = exchange_rate
        if budget is not None or exchange_rate is not None:
            self.changed_at = max(self.changed_at, now_s)

    def adopt(self, terms: Terms) -> None:
        """What somebody else knows, if it is news."""
        if terms.changed_at > self.changed_at:
            self.budget, self.exchange_rate, self.changed_at = (
                terms.budget,
                terms.exchange_rate,
                terms.changed_at,
            )

    def statement(self) -> Statement:
        raced = {side: (budget.tokens, budget.spent) for side, budget in self.payer.budgets.items()}
        return Statement(self.terms, self.ledger, raced)


class Accounts:
    """By key: an API key's fingerprint, or a device. payer, budget, exchange_rate: of a new one."""

    def __init__(
        self, payer: Callable[[], Payer], budget: float = 0.5, exchange_rate: float = MAINS_USD_PER_J
    ) -> None:
        self._payer, self._budget, self._exchange_rate = payer, budget, exchange_rate
        self._accounts: OrderedDict[str, Account] = OrderedDict()

    def of(self, key: str) -> Account:
        """The account of that key, opened when it is first asked for."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(self._exchange_rate, self._payer())
            account.budget = self._budget
            if len(self._accounts) > KEPT:
                self._accounts.popitem(last=False)
        self._accounts.move_to_end(key)
        return account

    def changed(self) -> dict[str, Terms]:
        """Of those whose owners have settled something."""
        return {key: account.terms for key, account in self._accounts.items() if account.changed_at > 0}

    def adopt(self, changed: Mapping[str, Terms]) -> None:
        """What another replica of the API knows of changed accounts."""
        for key, terms in changed.items():
            self.of(key).adopt(terms)
