"""Limits of requests: of an account, and of a team of keys together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tandem.deployments.access.usage import Period, Spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Limits of an account, or of all keys of a team together; None for no limit.

    requests_per_minute: most requests in a minute.
    tokens_per_minute: most tokens in a minute, taken in and given out.
    concurrent: most answers under way at once.
    usd: most dollars that the server's tokens may cost in a period.
    per: that period.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    usd: float | None = None
    per: Period = "month"


@dataclass(frozen=True, slots=True)
class Team:
    """A team of keys. name: by which keys and usage call it; quota: of all its keys together."""

    name: str
    quota: Quota


class TeamLimits(NamedTuple):
    """Limits that hold for a request because of its key's team.

    spent: the team's dollars in the period of its quota; None if that has no limit of dollars.
    """

    team: Team
    spent: Spent | None


class Standing(NamedTuple):
    """Dollars of an account, and of its team, at one moment.

    spent: the account's in the period of its terms; None if these have no limit of dollars.
    team: as in Caller.
    """

    spent: Spent | None = None
    team: TeamLimits | None = None
