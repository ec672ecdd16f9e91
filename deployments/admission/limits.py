"""Limits of accounts and teams: requests and tokens per minute and dollars per period, taken and reserved."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tandem.deployments.access.quota import Standing
from tandem.deployments.access.usage import Spent
from tandem.deployments.admission.entry import (
    Allowance,
    Bound,
    Entry,
    LimitReached,
    Passage,
    QuotaExceeded,
    Room,
    bound_of,
)
from tandem.policies.admission.rate_limit import RateLimit
from tandem.policies.admission.spending import Spending
from tandem.policies.cost import PerToken

MINUTE_S = 60.0
SETTLED_S = 3.0
"""Longest from what was last heard of a request that is over to the reports of its answers."""


class _Limits:
    """Limits of one account, or of one team."""

    __slots__ = ("requests", "spending", "tokens")

    def __init__(self) -> None:
        self.requests: RateLimit | None = None
        self.tokens: RateLimit | None = None
        self.spending: Spending | None = None

    def follow(self, bound: Bound, now_s: float) -> None:
        """Take over the limits that hold now."""
        self.requests = _limit(self.requests, bound.quota.requests_per_minute, now_s)
        self.tokens = _limit(self.tokens, bound.quota.tokens_per_minute, now_s)
        if bound.spent is not None:
            self.spending = self.spending or Spending()
            self.spending.follow(*bound.spent)


def _limit(before: RateLimit | None, per_minute: int | None, now_s: float) -> RateLimit | None:
    """Return a rate limit in which what was taken before still counts; None for no limit."""
    if per_minute is None or before is None:
        return None if per_minute is None else RateLimit(per_minute)
    if before.limit != per_minute:
        before.change(per_minute, now_s)
    return before


@dataclass(slots=True)
class _Reserved:
    """Parts of limits that an answer under way may still take, each with the limit that it was taken out of.

    tokens: to be given out; usd: dollars.
    """

    tokens: list[tuple[RateLimit, int]] = field(default_factory=list)
    usd: list[tuple[Spending, float]] = field(default_factory=list)


class Quotas:
    """The rest of all limits.

    The most that an answer of one model may take is reserved before it begins, and what is left of that comes back with
    its report, once its bill is booked: dollars are spent as the ledger says, those of answers that it does not have
    yet are reserved. So no limit is exceeded, however many begin at once. Only dollars can be, by a second model of the
    cloud that takes part, or by an answer that begins anew.

    price: returns a model's price, dollars per token.
    """

    def __init__(self, price: Callable[[str], PerToken], clock: Callable[[], float] = time.monotonic) -> None:
        self._price, self._clock = price, clock
        self._limits: dict[str, _Limits] = {}  # by name of a Bound
        self._team: dict[str, str] = {}  # by account, its team's name as a Bound
        self._reserved: dict[int, _Reserved] = {}  # by job
        # By job whose request has left, when it counts as unreported; the first one is due first.
        self._settling: dict[int, float] = {}

    def enter(self, entry: Entry) -> None:
        """Take a request out of its limits, and reserve for its answers. Raises LimitReached, QuotaExceeded."""
        now_s = self._clock()
        self._release_unreported(now_s)
        found = self._follow(entry, now_s)
        for bound, limits in zip(entry.bound, found, strict=True):
            self._check(entry, bound, limits, now_s)
        for limits in found:
            if limits.requests is not None:
                limits.requests.take(1, now_s)
            if limits.tokens is not None:
                limits.tokens.take(entry.prompt_tokens, now_s)
        self._reserve(entry, found, now_s)

    def goes_on(self, entry: Entry) -> None:
        """Reserve what a request may take that was let in before; once, however often it is told of."""
        now_s = self._clock()
        self._reserve(entry, self._follow(entry, now_s), now_s)

    def passage(self, entry: Entry) -> Passage:
        """Return the rest of a request's limits."""
        now_s = self._clock()
        found = [self._limits[bound.name] for bound in entry.bound]
        return Passage(
            _allowance([limits.requests for limits in found], now_s),
            _allowance([limits.tokens for limits in found], now_s),
        )

    def left(self, entry: Entry) -> None:
        """Note that a request is over: those of its answers that are not reported soon never began."""
        due_s = self._clock() + SETTLED_S
        for room in entry.rooms:
            if room.job in self._reserved:
                self._settling.pop(room.job, None)
                self._settling[room.job] = due_s  # the last one

    def over(self, entry: Entry) -> None:
        """Note that a request is over, and not booked yet: a new admission controller may hear of it for the first
        time."""
        if not any(room.job in self._reserved for room in entry.rooms):
            self.goes_on(entry)
        self.left(entry)

    def used(self, account: str, tokens: int, job: int = 0, standing: Standing | None = None) -> None:
        """Record the output tokens of an account's answer that is over and booked. standing: what the account has spent
        with it; None where that is not known."""
        now_s = self._clock()
        self._release(job, now_s)
        for name in (account, self._team.get(account)):
            if (
                name is not None
                and (limits := self._limits.get(name)) is not None
                and limits.tokens is not None
            ):
                limits.tokens.take(tokens, now_s)
        if standing is not None:
            self._spent(account, standing.spent)
            if standing.team is not None:
                self._spent(bound_of(standing.team.team), standing.team.spent)

    def _spent(self, name: str, spent: Spent | None) -> None:
        """Take over what the ledger says."""
        limits = self._limits.get(name)
        if limits is not None and limits.spending is not None and spent is not None:
            limits.spending.follow(*spent)

    def _follow(self, entry: Entry, now_s: float) -> list[_Limits]:
        """Return the limits of a request's account and team, as they hold now."""
        bound = entry.bound
        self._team.pop(entry.account, None)
        if entry.team is not None:
            self._team[entry.account] = bound[-1].name
        found = [self._limits.setdefault(each.name, _Limits()) for each in bound]
        for each, limits in zip(bound, found, strict=True):
            limits.follow(each, now_s)
        return found

    def _check(self, entry: Entry, bound: Bound, limits: _Limits, now_s: float) -> None:
        """Raise LimitReached or QuotaExceeded if the request does not fit into the limits."""
        tokens = entry.prompt_tokens + sum(room.output for room in entry.rooms)
        if limits.tokens is not None and entry.rooms and tokens > limits.tokens.limit:
            raise LimitReached(
                f"at most {limits.tokens.limit:g} tokens a minute{bound.told}, and this request may take {tokens}: its "
                f"prompt of {entry.prompt_tokens} and max_tokens",
                MINUTE_S,
            )
        for limit, amount, what in (
            (limits.requests, 1, "requests"),
            (limits.tokens, tokens, "tokens"),
        ):
            if limit is not None and (wait_s := limit.wait_s(amount, now_s)) > 0:
                raise LimitReached(f"at most {limit.limit:g} {what} a minute{bound.told}", wait_s)
        if limits.spending is not None and bound.spent is not None and bound.quota.usd is not None:
            usd = sum(self._usd(entry.model, room) for room in entry.rooms)
            _check_dollars(usd, limits.spending, bound, bound.spent.since, bound.quota.usd)

    def limits_usd(self, job: int) -> bool:
        """Return whether dollars are reserved for an answer, so that it had better not cost more than was expected."""
        reserved = self._reserved.get(job)
        return reserved is not None and bool(reserved.usd)

    def _usd(self, model: str, room: Room) -> float:
        """Return the most that an answer costs at the server: it may have to take in what was begun elsewhere."""
        return self._price(model).of(room.prompt + room.output, room.output)

    def _reserve(self, entry: Entry, all_limits: Sequence[_Limits], now_s: float) -> None:
        """Take what the request's answers may take at most out of the limits, once for each answer."""
        for room in entry.rooms:
            self._release(room.job, now_s)
            reserved = _Reserved()
            for limits in all_limits:
                if limits.tokens is not None:
                    limits.tokens.take(room.output, now_s)
                    reserved.tokens.append((limits.tokens, room.output))
                if limits.spending is not None:
                    usd = self._usd(entry.model, room)
                    limits.spending.reserved += usd
                    reserved.usd.append((limits.spending, usd))
            if reserved.tokens or reserved.usd:
                self._reserved[room.job] = reserved

    def _release(self, job: int, now_s: float) -> None:
        """Give back what is reserved for an answer."""
        self._settling.pop(job, None)
        if (reserved := self._reserved.pop(job, None)) is None:
            return
        for limit, tokens in reserved.tokens:
            limit.give(tokens, now_s)
        for spending, usd in reserved.usd:
            spending.reserved = max(0.0, spending.reserved - usd)

    def _release_unreported(self, now_s: float) -> None:
        """Give back what is reserved for answers that were never reported, as they did not begin."""
        while (job := next(iter(self._settling), None)) is not None and self._settling[job] <= now_s:
            self._release(job, now_s)


def _check_dollars(usd: float, spending: Spending, bound: Bound, since: str, limit: float) -> None:
    """Raise LimitReached or QuotaExceeded if `usd` cannot be reserved."""
    if spending.fits(usd, since, limit):
        return
    left, most = spending.left(since, limit), f"{limit:g} dollars a {bound.quota.per}{bound.told}"
    if usd <= left + spending.reserved:
        raise LimitReached(f"the rest of {most} is reserved for answers under way", 1.0)
    raise QuotaExceeded(
        f"at most {most}: {max(0.0, left + spending.reserved):.6f} are left since {since}, and this request may cost "
        f"{usd:.6f}; a smaller max_tokens costs less"
    )


def _allowance(limits: Sequence[RateLimit | None], now_s: float) -> Allowance | None:
    """Return the rest of that limit of which the least is left; None if there is none."""
    limit = min(
        (each for each in limits if each is not None), key=lambda each: each.left(now_s), default=None
    )
    if limit is None:
        return None
    return Allowance(int(limit.limit), max(0, int(limit.left(now_s))), limit.full_s(now_s))
