"""Admission controller: which requests may begin, by their limits and fair turns. One for all replicas of the API.

A request is admitted once, for all of its answers; a begun answer that continues elsewhere is admitted already, so it
never waits behind a new one. A replica of the API regularly reports its requests: those no longer listed have left, and
so have all of a silent replica.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tandem.deployments.access.accounts import Terms
from tandem.deployments.access.usage import Spent
from tandem.deployments.config.settings import GateSettings
from tandem.engine.base import EngineError
from tandem.policies.admission.fairness import Claim, FairQueue
from tandem.policies.admission.rate_limit import RateLimit
from tandem.policies.admission.spending import Spending
from tandem.policies.cost import PerToken

SILENT_S = 10.0
"""Seconds after which the requests of a silent replica of the API count as over."""
MINUTE_S = 60.0
SETTLED_S = 2.0
"""Longest from the end of a request to the reports of its answers."""
LEAVING_S = 1.0
"""Longest until a replica of the API has reported that a request is over."""


class LimitReached(EngineError):
    """The account has had what its terms allow for now. retry_after_s: when there is more."""

    code = "rate_limit_exceeded"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return str(self.args[0])


class QuotaExceeded(EngineError):
    """The account's dollars for the period do not suffice for the request."""

    code = "insufficient_quota"


class Room(NamedTuple):
    """Most tokens of an answer.

    job: id of the answer's job, which its report has.
    prompt, output: tokens to be taken in, and the most to be given out.
    """

    job: int
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that wants to begin.

    sessions: answers to it.
    prompt_tokens: of all of them.
    terms: of its account.
    model: that answers, whose verifiers it takes places of; "": the first one.
    priority: among the account's requests that wait, the lowest first.
    rooms: of its answers, for which tokens and dollars are reserved; () where they are not known.
    spent: the account's dollars in the period of its terms; None if these have no limit of dollars.
    """

    request: int
    account: str
    sessions: int
    prompt_tokens: int
    terms: Terms
    model: str = ""
    priority: int = 0
    rooms: tuple[Room, ...] = ()
    spent: Spent | None = None


@dataclass(frozen=True, slots=True)
class Allowance:
    """Rest of a limit per minute. reset_s: seconds until all of it is available again."""

    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class Passage:
    """Permission to begin.

    requests, tokens: rest of the account's limits; None without a limit.
    """

    requests: Allowance | None = None
    tokens: Allowance | None = None


class _Limits:
    """Limits of one account."""

    __slots__ = ("requests", "spending", "tokens")

    def __init__(self) -> None:
        self.requests: RateLimit | None = None
        self.tokens: RateLimit | None = None
        self.spending: Spending | None = None

    def follow(self, entry: Entry, now_s: float) -> None:
        """Take over the limits that hold now."""
        terms = entry.terms
        self.requests = _limit(self.requests, terms.requests_per_minute, now_s)
        self.tokens = _limit(self.tokens, terms.tokens_per_minute, now_s)
        if entry.spent is not None:
            self.spending = self.spending or Spending()
            self.spending.follow(*entry.spent)


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


class Gate:
    """Admission controller. Limits are an account's whatever the model; each model has turns and a queue of its own.

    The most that an answer of one model may take is reserved before it begins, and what is left of that comes back with
    its report: so no limit is exceeded, however many begin at once. Only dollars can be, by a second model of the
    cloud that takes part, or by an answer that begins anew.

    capacity: sessions that can run at once, as far as is known, by model.
    settings: of each queue.
    price: returns a model's price, dollars per token.
    """

    def __init__(
        self,
        capacity: Mapping[str, Callable[[], int]],
        settings: GateSettings,
        clock: Callable[[], float] = time.monotonic,
        price: Callable[[str], PerToken] = lambda _: PerToken(0.0, 0.0),
    ) -> None:
        self._capacity, self.settings, self._clock = capacity, settings, clock
        self._fair = {model: FairQueue(room()) for model, room in capacity.items()}
        self._limits: dict[str, _Limits] = {}
        self._waiting: dict[Claim, asyncio.Future[None]] = {}
        self._under_way: dict[str, dict[int, tuple[Entry, Claim]]] = {}  # by replica of the API and request
        self._heard_s: dict[str, float] = {}
        self._price = price
        self._reserved: dict[int, _Reserved] = {}  # by job
        # By job whose request has left, when it counts as unreported; the first one is due first.
        self._settling: dict[int, float] = {}
        # By account, requests beyond its limit, by replica and id: True when another is over, False if it has left.
        self._beyond: dict[str, dict[tuple[str, int], tuple[Entry, asyncio.Future[bool]]]] = {}

    def waiting(self, model: str = "") -> int:
        """Return the number of requests that wait for a model's room."""
        return self._queue(model).waiting

    async def enter(self, replica: str, entry: Entry) -> Passage:
        """Return when the request may begin. Raises LimitReached, QuotaExceeded."""
        self._forget_silent()
        terms = entry.terms
        if terms.concurrent is not None:
            await self._within(replica, entry, terms.concurrent)
        now_s = self._clock()
        self._release_unreported(now_s)
        limits = self._limits.setdefault(entry.account, _Limits())
        limits.follow(entry, now_s)
        self._check(entry, limits, now_s)
        if limits.requests is not None:
            limits.requests.take(1, now_s)
        if limits.tokens is not None:
            limits.tokens.take(entry.prompt_tokens, now_s)
        self._reserve(entry, limits, now_s)
        place = self._queue(entry.model).join(entry.account, entry.sessions, entry.priority)
        self._heard_s[replica] = now_s
        self._under_way.setdefault(replica, {})[entry.request] = entry, place
        try:
            await self._admitted(entry.model, place)
        except BaseException:
            self._leave(replica, entry.request)
            raise
        now_s = self._clock()
        return Passage(_allowance(limits.requests, now_s), _allowance(limits.tokens, now_s))

    def used(self, account: str, tokens: int, job: int = 0, usd: float = 0.0) -> None:
        """Record the output tokens and the server's dollars of an account's answer that is over."""
        now_s = self._clock()
        self._release(job, now_s)
        if (limits := self._limits.get(account)) is None:
            return
        if limits.tokens is not None:
            limits.tokens.take(tokens, now_s)
        if limits.spending is not None:
            limits.spending.add(usd)

    def under_way(self, replica: str, entries: Mapping[int, Entry]) -> None:
        """Record all requests that a replica of the API has under way: others have left, and unknown ones (the router
        is new) were admitted before."""
        self._heard_s[replica] = self._clock()
        known = self._under_way.setdefault(replica, {})
        for request in [
            r for r, (_, place) in known.items() if place not in self._waiting and r not in entries
        ]:
            self._leave(replica, request)
        for request, entry in entries.items():
            if request not in known:
                known[request] = entry, self._queue(entry.model).join(entry.account, entry.sessions)
                limits = self._limits.setdefault(entry.account, _Limits())
                limits.follow(entry, self._clock())
                self._reserve(entry, limits, self._clock())
        for model in self._fair:
            self._admit(model)

    def leave(self, replica: str, request: int) -> None:
        """Remove a request that is over."""
        for beyond in self._beyond.values():
            if (found := beyond.get((replica, request))) is not None and not found[1].done():
                found[1].set_result(False)
        self._leave(replica, request)

    async def _within(self, replica: str, entry: Entry, limit: int) -> None:
        """Return when the account may have `limit` answers at once. Raises LimitReached.

        A delivered answer may still count here, as replicas report ends a little later. So requests are refused after
        LEAVING_S, and at once if as many as the limit wait already.
        """
        account, key = entry.account, (replica, entry.request)
        refusal = LimitReached(f"at most {limit} answers at once", 1.0)
        beyond = self._beyond.setdefault(account, {})
        try:
            async with asyncio.timeout(LEAVING_S):
                while sum(fair.of(account) for fair in self._fair.values()) + entry.sessions > limit:
                    beyond.pop(key, None)
                    if sum(other.sessions for other, _ in beyond.values()) + entry.sessions > limit:
                        raise refusal
                    freed = asyncio.get_running_loop().create_future()
                    beyond[key] = entry, freed
                    if not await freed:
                        raise refusal  # its client has gone
        except TimeoutError:
            raise refusal from None
        finally:
            beyond.pop(key, None)
            if not beyond:
                self._beyond.pop(account, None)

    def _check(self, entry: Entry, limits: _Limits, now_s: float) -> None:
        """Raise LimitReached or QuotaExceeded if the request does not fit into the account's limits."""
        tokens = entry.prompt_tokens + sum(room.output for room in entry.rooms)
        if limits.tokens is not None and entry.rooms and tokens > limits.tokens.limit:
            raise LimitReached(
                f"at most {limits.tokens.limit:g} tokens a minute, and this request may take {tokens}: its prompt of "
                f"{entry.prompt_tokens} and max_tokens",
                MINUTE_S,
            )
        for limit, amount, what in (
            (limits.requests, 1, "requests"),
            (limits.tokens, tokens, "tokens"),
        ):
            if limit is not None and (wait_s := limit.wait_s(amount, now_s)) > 0:
                raise LimitReached(f"at most {limit.limit:g} {what} a minute", wait_s)
        if (
            (spending := limits.spending) is not None
            and entry.spent is not None
            and entry.terms.usd is not None
        ):
            self._check_dollars(entry, spending, entry.spent.since, entry.terms.usd)
        if (waiting := self.waiting(entry.model)) >= self.settings.queue:
            raise LimitReached(f"{waiting} requests wait already", 1.0)

    def _check_dollars(self, entry: Entry, spending: Spending, since: str, limit: float) -> None:
        usd = sum(self._usd(entry.model, room) for room in entry.rooms)
        if spending.fits(usd, since, limit):
            return
        left, per = spending.left(since, limit), entry.terms.per
        if usd <= left + spending.reserved:
            raise LimitReached(
                f"the rest of {limit:g} dollars a {per} is reserved for answers under way", 1.0
            )
        raise QuotaExceeded(
            f"at most {limit:g} dollars a {per}: {max(0.0, left + spending.reserved):.6f} are left since {since}, and "
            f"this request may cost {usd:.6f}; a smaller max_tokens costs less"
        )

    def _usd(self, model: str, room: Room) -> float:
        """Return the most that an answer costs at the server: it may have to take in what was begun elsewhere."""
        return self._price(model).of(room.prompt + room.output, room.output)

    def _reserve(self, entry: Entry, limits: _Limits, now_s: float) -> None:
        """Take what the request's answers may take at most out of the account's limits, once for each answer."""
        for room in entry.rooms:
            self._release(room.job, now_s)
            if limits.tokens is None and limits.spending is None:
                continue
            reserved = self._reserved[room.job] = _Reserved()
            if limits.tokens is not None:
                limits.tokens.take(room.output, now_s)
                reserved.tokens.append((limits.tokens, room.output))
            if limits.spending is not None:
                usd = self._usd(entry.model, room)
                limits.spending.reserved += usd
                reserved.usd.append((limits.spending, usd))

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

    async def _admitted(self, model: str, place: Claim) -> None:
        """Return when there is room for it. Raises LimitReached after `queue_s`."""
        self._admit(model)
        if place.admitted:
            return
        queue_s = self.settings.queue_s
        admitted = self._waiting[place] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(queue_s):
                await admitted
        except TimeoutError:
            raise LimitReached(f"no room within {queue_s:g} s", 1.0) from None
        finally:
            del self._waiting[place]

    def _queue(self, model: str) -> FairQueue:
        """Return a model's queue; the first one's for a model that is not here."""
        return self._fair.get(model) or next(iter(self._fair.values()))

    def _admit(self, model: str) -> None:
        fair = self._queue(model)
        fair.capacity = self._capacity.get(model, next(iter(self._capacity.values())))()
        for place in fair.admit():
            admitted = self._waiting.get(place)
            if admitted is not None and not admitted.done():
                admitted.set_result(None)

    def _leave(self, replica: str, request: int) -> None:
        found = self._under_way.get(replica, {}).pop(request, None)
        if found is not None:
            entry, place = found
            self._queue(entry.model).leave(place)
            for room in entry.rooms:
                if room.job in self._reserved:
                    self._settling[room.job] = self._clock() + SETTLED_S
            for _, freed in self._beyond.get(entry.account, {}).values():
                if not freed.done():
                    freed.set_result(True)
            self._admit(entry.model)

    def _forget_silent(self) -> None:
        now_s = self._clock()
        for replica in [r for r, heard_s in self._heard_s.items() if heard_s < now_s - SILENT_S]:
            requests = self._under_way[replica]
            for request, (_, place) in list(requests.items()):
                if place not in self._waiting:  # one that waits has nothing under way to tell of
                    self._leave(replica, request)
            if not requests:
                del self._heard_s[replica], self._under_way[replica]


def _allowance(limit: RateLimit | None, now_s: float) -> Allowance | None:
    if limit is None:
        return None
    return Allowance(int(limit.limit), max(0, int(limit.left(now_s))), limit.full_s(now_s))
