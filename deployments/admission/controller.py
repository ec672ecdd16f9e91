"""Admission controller: which requests may begin, by their limits and fair turns. One for all replicas of the API.

A request is admitted once, for all of its answers; a begun answer that continues elsewhere is admitted already, so it
never waits behind a new one. A replica of the API regularly reports its requests: those no longer listed have left, and
so have all of a silent replica.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from math import inf

from tandem.deployments.access.client.caller_cache import KNOWN_S
from tandem.deployments.access.quota import Standing
from tandem.deployments.admission.entry import Bound, Entry, LimitReached, Passage
from tandem.deployments.admission.limits import Quotas
from tandem.deployments.config.settings import GateSettings
from tandem.policies.admission.fairness import Claim, FairQueue
from tandem.policies.cost import PerToken

SILENT_S = 10.0
"""Seconds after which the requests of a silent replica of the API count as over."""
SIGN_S = 1.0
"""Seconds between two reports of a replica of the API."""
LEARNING_S = SIGN_S + KNOWN_S + 0.2
"""Seconds after which a new admission controller knows what its predecessor has let in."""
LEAVING_S = 1.0
"""Longest until a replica of the API has reported that a request is over."""


class Gate:
    """Admission controller. Limits are an account's and its team's whatever the model; each model has turns and a
    queue of its own.

    capacity: sessions that can run at once, as far as is known, by model.
    settings: of each queue.
    quotas: what is left of all limits.

    Where it may have had a predecessor, which let in requests that it has not heard of, those of accounts with limits
    on answers at once or dollars wait until it has. The first request with a limit of dollars, of an account or a team,
    asks for what is spent: a bill that was booked while there was no admission controller was told to none, and what
    the request brings along may be older.
    """

    def __init__(
        self,
        capacity: Mapping[str, Callable[[], int]],
        settings: GateSettings,
        clock: Callable[[], float] = time.monotonic,
        price: Callable[[str], PerToken] = lambda _: PerToken(0.0, 0.0),
        spent: Callable[[str], Awaitable[Standing]] | None = None,
    ) -> None:
        """price: returns a model's price, dollars per token. spent: returns what an account, and its team, have spent
        by now; None where this is the first admission controller."""
        self._capacity, self.settings, self._clock = capacity, settings, clock
        self._fair = {model: FairQueue(room()) for model, room in capacity.items()}
        self.quotas = Quotas(price, clock)
        self._at_once = Counter[str]()  # by name of a Bound, answers under way or waiting
        self._waiting: dict[Claim, asyncio.Future[None]] = {}
        self._under_way: dict[str, dict[int, tuple[Entry, Claim]]] = {}  # by replica of the API and request
        self._heard_s: dict[str, float] = {}
        self._spent, self._learning = spent, 0  # requests that wait until enough is known
        self._asked: set[str] = (
            set()
        )  # names of Bounds whose spent dollars are known; later bills are told of
        self._informed_s = -inf if spent is None else clock() + LEARNING_S
        # By name of a Bound, requests beyond its limit, by replica and id: True when another is over, False if it has
        # left.
        self._beyond: dict[str, dict[tuple[str, int], tuple[Entry, asyncio.Future[bool]]]] = {}

    def waiting(self, model: str = "") -> int:
        """Return the number of requests that wait for a model's room."""
        return self._queue(model).waiting

    @property
    def under_way_now(self) -> int:
        """Number of requests that were let in, or wait, and have not left."""
        return sum(map(len, self._under_way.values()))

    async def enter(self, replica: str, entry: Entry) -> Passage:
        """Return when the request may begin. Raises LimitReached, QuotaExceeded."""
        self._forget_silent()
        learning = entry.limited and self._clock() < self._informed_s
        if learning or (self._spent is not None and not self._asked.issuperset(_in_dollars(entry))):
            entry = await self._informed(entry)
        await self._within(replica, entry)
        if (waiting := self.waiting(entry.model)) >= self.settings.queue:
            raise LimitReached(f"{waiting} requests wait already", 1.0)
        self.quotas.enter(entry)
        self._heard_s[replica] = self._clock()
        place = self._join(replica, entry)
        try:
            await self._admitted(entry.model, place)
        except BaseException:
            self._leave(replica, entry.request)
            raise
        return self.quotas.passage(entry)

    async def _informed(self, entry: Entry) -> Entry:
        """Return an entry that says what was spent until now, once all that is under way is known. Raises
        LimitReached."""
        assert self._spent is not None
        if self._learning >= self.settings.queue:
            raise LimitReached(f"{self._learning} requests wait already", 1.0)
        self._learning += 1
        try:
            await asyncio.sleep(max(0.0, self._informed_s - self._clock()))
            standing = await self._spent(entry.account)
            entry = entry.after(standing)
            self._asked.update(_in_dollars(entry))
            return entry
        finally:
            self._learning -= 1

    def under_way(self, replica: str, entries: Mapping[int, Entry]) -> None:
        """Record all requests that a replica of the API has under way: others have left, and unknown ones (the router
        is new) were admitted before."""
        self._heard_s[replica] = self._clock()
        known = self._under_way.setdefault(replica, {})
        for request in [
            r
            for r, (_, place) in known.items()
            if place not in self._waiting and not (r in entries and entries[r].sessions)
        ]:
            self._leave(replica, request)
        for request, entry in entries.items():
            if not entry.sessions:
                self.quotas.over(entry)
            elif request not in known:
                self.quotas.goes_on(entry)
                self._join(replica, entry)
        for model in self._fair:
            self._admit(model)

    def leave(self, replica: str, request: int) -> None:
        """Remove a request that is over."""
        for beyond in self._beyond.values():
            if (found := beyond.get((replica, request))) is not None and not found[1].done():
                found[1].set_result(False)
        self._leave(replica, request)

    def _join(self, replica: str, entry: Entry) -> Claim:
        """Give a request a place among the others."""
        for bound in entry.bound:
            self._at_once[bound.name] += entry.sessions
        place = self._queue(entry.model).join(entry.account, entry.sessions, entry.priority)
        self._under_way.setdefault(replica, {})[entry.request] = entry, place
        return place

    async def _within(self, replica: str, entry: Entry) -> None:
        """Return when the account, and its team, may have the entry's answers at once. Raises LimitReached.

        A delivered answer may still count here, as replicas report ends a little later. So requests are refused after
        LEAVING_S, and at once if as many as the limit wait already.
        """
        key, refusal = (replica, entry.request), None
        try:
            async with asyncio.timeout(LEAVING_S):
                while (full := self._full(entry)) is not None:
                    limit = full.quota.concurrent or 0
                    refusal = LimitReached(f"at most {limit} answers at once{full.told}", 1.0)
                    beyond = self._beyond.setdefault(full.name, {})
                    try:
                        if sum(other.sessions for other, _ in beyond.values()) + entry.sessions > limit:
                            raise refusal
                        freed = asyncio.get_running_loop().create_future()
                        beyond[key] = entry, freed
                        if not await freed:
                            raise refusal  # its client has gone
                    finally:
                        beyond.pop(key, None)
                        if not beyond:
                            self._beyond.pop(full.name, None)
        except TimeoutError:
            raise refusal or LimitReached("too many answers at once", 1.0) from None

    def _full(self, entry: Entry) -> Bound | None:
        """Return whichever of account and team has no place for the request's answers now; None if both have."""
        for bound in entry.bound:
            limit = bound.quota.concurrent
            if limit is not None and self._at_once[bound.name] + entry.sessions > limit:
                return bound
        return None

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
            for bound in entry.bound:
                self._at_once[bound.name] -= entry.sessions
                if not self._at_once[bound.name]:
                    del self._at_once[bound.name]
            self.quotas.left(entry)
            for bound in entry.bound:
                for _, freed in self._beyond.get(bound.name, {}).values():
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


def _in_dollars(entry: Entry) -> list[str]:
    """Return the names of the request's Bounds that limit dollars."""
    return [bound.name for bound in entry.bound if bound.quota.usd is not None]
