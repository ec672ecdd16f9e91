"""A request as the admission controller sees it: what it wants, whose limits hold, and what it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tandem.deployments.access.accounts import Terms
from tandem.deployments.access.keys import Caller
from tandem.deployments.access.quota import Quota, Standing, Team, TeamLimits
from tandem.deployments.access.usage import Spent
from tandem.engine.base import EngineError


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

    sessions: answers to it; 0 once it is over, and its bill not booked yet.
    prompt_tokens: of all of them.
    terms: of its account.
    model: that answers, whose verifiers it takes places of; "": the first one.
    priority: among the account's requests that wait, the lowest first.
    rooms: of its answers, for which tokens and dollars are reserved; () where they are not known.
    spent: the account's dollars in the period of its terms; None if these have no limit of dollars.
    team: limits of the account's team, which hold for all its keys together; None without one.
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
    team: TeamLimits | None = None

    @property
    def bound(self) -> tuple[Bound, ...]:
        """The account and its team, whose limits hold."""
        own = Bound(self.account, "", self.terms, self.spent)
        if self.team is None:
            return (own,)
        team, spent = self.team
        return own, Bound(bound_of(team), f" for the team {team.name!r}", team.quota, spent)

    @classmethod
    def of(
        cls, caller: Caller, rooms: Sequence[Room], prompt_tokens: int, model: str, priority: int = 0
    ) -> Entry:
        """Return the entry of a caller's request for these answers, under the first one's id."""
        return cls(
            rooms[0].job,
            caller.account,
            len(rooms),
            prompt_tokens,
            caller.terms,
            model,
            priority,
            tuple(rooms),
            caller.spent,
            caller.team,
        )

    @property
    def limited(self) -> bool:
        """Whether there is a limit on answers at once, or on dollars."""
        return any(b.quota.concurrent is not None or b.quota.usd is not None for b in self.bound)

    @property
    def any_limit(self) -> bool:
        """Whether there is any limit."""
        quotas = [
            (q.requests_per_minute, q.tokens_per_minute, q.concurrent, q.usd) for _, _, q, _ in self.bound
        ]
        return any(limit is not None for limits in quotas for limit in limits)

    @property
    def has_dollars(self) -> bool:
        """Whether there is a limit on dollars."""
        return any(b.quota.usd is not None for b in self.bound)

    def after(self, standing: Standing) -> Entry:
        """Return the entry with what is known now of its account."""
        return replace(self, spent=standing.spent, team=standing.team)


class Bound(NamedTuple):
    """An account, or a team, whose limits hold for a request.

    name: it among others; told: it in a message.
    """

    name: str
    told: str
    quota: Quota
    spent: Spent | None


def bound_of(team: Team) -> str:
    """Return the name of a team's Bound."""
    return f"team {team.name}"


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
