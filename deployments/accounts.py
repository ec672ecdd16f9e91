"""Accounts: who pays for requests, within which budget, and what they have cost so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from deployments.kept import Kept
from policies.cost import MAINS_USD_PER_J, Used
from policies.dispatch import Side
from policies.race import RaceAccount

KEPT = 10_000
"""Accounts kept. Of those whose owners have set no terms, the least recently used go first; those with terms have a
limit of the same size."""


@dataclass(slots=True)
class Ledger:
    """What requests have cost.

    used: tokens at both kinds of endpoint.
    server_usd: dollars that the server asks for them.
    joules: spent by devices.
    device_usd: what those were worth when they were spent.
    """

    requests: int = 0
    used: Used = field(default_factory=Used)
    server_usd: float = 0.0
    joules: float = 0.0
    device_usd: float = 0.0

    def add(self, used: Used, server_usd: float, joules: float, device_usd: float) -> None:
        """One more request."""
        self.requests += 1
        self.used.add(used)
        self.server_usd += server_usd
        self.joules += joules
        self.device_usd += device_usd


@dataclass(frozen=True, slots=True)
class Terms:
    """What an account's owner may settle.

    budget: the share of prompt tokens that the constrained endpoint may take in.
    exchange_rate: what a joule of the account's devices is worth, dollars.
    """

    budget: float
    exchange_rate: float


@dataclass(frozen=True, slots=True)
class Statement:
    """An account as its owner sees it.

    raced: by the side that was the constrained one, the prompt tokens of the latest races, and those of them that it
        took in.
    """

    terms: Terms
    ledger: Ledger
    raced: Mapping[Side, tuple[float, float]]


class Account:
    """terms: what holds for its next request.
    payer: its budgets, and what races need to know of it.
    ledger: of all requests that are over.
    """

    __slots__ = ("_terms", "ledger", "payer")

    def __init__(self, terms: Terms, payer: RaceAccount) -> None:
        self.payer, self.ledger = payer, Ledger()
        self.terms = terms

    @property
    def terms(self) -> Terms:
        return self._terms

    @terms.setter
    def terms(self, terms: Terms) -> None:
        self._terms = terms
        for budget in self.payer.budgets.values():
            budget.share = terms.budget

    def statement(self) -> Statement:
        raced = {side: (budget.tokens, budget.spent) for side, budget in self.payer.budgets.items()}
        return Statement(self.terms, self.ledger, raced)


class Accounts:
    """By key: an API key's fingerprint, or a device.

    payer, budget, exchange_rate: of a new account.
    """

    def __init__(
        self, payer: Callable[[], RaceAccount], budget: float = 0.5, exchange_rate: float = MAINS_USD_PER_J
    ) -> None:
        self._payer, self._terms = payer, Terms(budget, exchange_rate)
        self._accounts: Kept[str, Account] = Kept(KEPT)
        self._settled: Kept[str, Account] = Kept(KEPT)  # whose owners have settled something

    def of(self, key: str) -> Account:
        """The account of that key, opened where there is none."""
        return (self._settled if key in self._settled else self._accounts).of(key, self._new)

    def statement(self, key: str) -> Statement:
        """Of that key's account; asking does not open one."""
        known = self._accounts.get(key) or self._settled.get(key)
        return (known or self._new()).statement()

    def settle(self, key: str, budget: float | None, exchange_rate: float | None) -> Account:
        """Counts from the next request on; what is None stays as it is."""
        account = self.of(key)
        if budget is not None or exchange_rate is not None:
            old = account.terms
            account.terms = Terms(
                old.budget if budget is None else budget,
                old.exchange_rate if exchange_rate is None else exchange_rate,
            )
            if self._accounts.pop(key, None) is not None:
                self._settled[key] = account
        return account

    def settled(self) -> dict[str, Terms]:
        """Of those whose owners have settled something."""
        return {key: account.terms for key, account in self._settled.items()}

    def restore(self, settled: Mapping[str, Terms]) -> None:
        """What was settled before this process began; what was settled since is newer."""
        for key, terms in settled.items():
            if key not in self._settled:
                self.settle(key, terms.budget, terms.exchange_rate)

    def _new(self) -> Account:
        return Account(self._terms, self._payer())
