"""Max-min fairness between accounts: which waiting request begins next.

The account with the fewest sessions under way goes first. An account that is alone may fill everything; as soon as
another one waits, it gets each place that comes free until both have as many. Requests of one account are ordered by
priority, those of one priority by arrival.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Claim:
    """A request's claim to sessions.
    size: number of sessions.
    priority: the lowest goes first.
    """

    account: str
    size: int
    arrival: int
    priority: int = 0
    admitted: bool = False


@dataclass(slots=True)
class _Account:
    """waiting: its claims, the first to be admitted first.
    arrivals: of these claims, the oldest first: a claim that goes before others of its account takes their turn.
    """

    under_way: int = 0
    waiting: deque[Claim] = field(default_factory=deque)
    arrivals: deque[int] = field(default_factory=deque)


class FairQueue:
    """Queue of claims.
    capacity: most sessions under way; may be set at any time. A single claim may exceed it while it is alone.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._under_way = self._waiting = self._arrivals = 0
        self._accounts: dict[str, _Account] = {}
        # (sessions under way, arrival of the oldest that waits, account); outdated entries are left until they come up
        self._next: list[tuple[int, int, str]] = []

    @property
    def under_way(self) -> int:
        """Number of sessions under way, over all accounts."""
        return self._under_way

    @property
    def waiting(self) -> int:
        """Number of claims that have not been admitted."""
        return self._waiting

    def of(self, account: str) -> int:
        """Return the number of sessions that an account has under way or waiting."""
        known = self._accounts.get(account)
        return 0 if known is None else known.under_way + sum(place.size for place in known.waiting)

    def join(self, account: str, size: int, priority: int = 0) -> Claim:
        """Add a claim; `admit` returns it when it may begin."""
        self._arrivals += 1
        place = Claim(account, size, self._arrivals, priority)
        known = self._accounts.setdefault(account, _Account())
        known.waiting.insert(bisect_right(known.waiting, priority, key=_priority_of), place)
        known.arrivals.append(place.arrival)
        self._waiting += 1
        self._rank(account)
        return place

    def leave(self, place: Claim) -> None:
        """Remove a claim, which is over or no longer waits."""
        known = self._accounts[place.account]
        if place.admitted:
            known.under_way -= place.size
            self._under_way -= place.size
        else:
            del known.arrivals[known.waiting.index(place)]
            known.waiting.remove(place)
            self._waiting -= 1
        if known.waiting:
            self._rank(place.account)
        elif not known.under_way:
            del self._accounts[place.account]

    def admit(self) -> list[Claim]:
        """Admit and return the waiting claims that may begin now."""
        begun = []
        while self._next:
            account = self._next[0][2]
            known = self._accounts.get(account)
            if known is None or not known.waiting or self._next[0] != self._rank_of(account, known):
                heapq.heappop(self._next)
                continue
            place = known.waiting[0]
            if self._under_way and self._under_way + place.size > self.capacity:
                break  # smaller claims must not overtake it
            known.waiting.popleft()
            known.arrivals.popleft()
            self._waiting -= 1
            place.admitted = True
            known.under_way += place.size
            self._under_way += place.size
            begun.append(place)
            heapq.heappop(self._next)
            if known.waiting:
                self._rank(account)
        return begun

    def _rank(self, account: str) -> None:
        heapq.heappush(self._next, self._rank_of(account, self._accounts[account]))

    @staticmethod
    def _rank_of(account: str, known: _Account) -> tuple[int, int, str]:
        return known.under_way, known.arrivals[0], account


def _priority_of(place: Claim) -> int:
    return place.priority
