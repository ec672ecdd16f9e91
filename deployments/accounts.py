"""Accounts: who pays for requests, within which budget, and what they have cost so far."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from policies.contest import Payer
from policies.cost import MAINS_USD_PER_J, Used
from policies.dispatch import Side

KEPT = 10_000  # accounts that were not used for longest are forgotten first


@dataclass(slots=True)
class Account:
    """exchange_rate: what a joule of its devices is worth to its owner, dollars. payer: its budgets, and what races
    need to know of it.

    used: tokens at both kinds of endpoint; server_usd: dollars that the server asks for them; joules: spent by its
    devices; device_usd: what those were worth when they were spent.
    """

    exchange_rate: float
    payer: Payer
    used: Used = field(default_factory=Used)
    requests: int = 0
    server_usd: float = 0.0
    joules: float = 0.0
    device_usd: float = 0.0

    @property
    def budget(self) -> float:
        """The share of prompt tokens that the constrained endpoint may take in."""
        return self.payer.budgets[Side.SERVER].share

    @budget.setter
    def budget(self, share: float) -> None:
        for budget in self.payer.budgets.values():
            budget.share = share

    def book(self, used: Used, server_usd: float, joules: float, device_usd: float) -> None:
        """A request that is over has used these tokens and cost so much."""
        self.requests += 1
        self.used.add(used)
        self.server_usd += server_usd
        self.joules += joules
        self.device_usd += device_usd


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
