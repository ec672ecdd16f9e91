"""Teams of keys: their limits, and the dollars that all keys of each have spent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tandem.deployments.access.device_name import PATTERN
from tandem.deployments.access.keys import KeyRefused
from tandem.deployments.access.quota import Team, TeamLimits
from tandem.deployments.access.usage import DailySpending, Spent


class NoSuchTeam(KeyRefused):
    """No team has this name."""


@dataclass(frozen=True, slots=True)
class TeamStatement:
    """A team as operators see it.

    keys: ids of its keys.
    usd: the server's dollars in the period of its quota, those of keys that were revoked included.
    """

    team: Team
    keys: tuple[str, ...]
    usd: Spent


class _Known(NamedTuple):
    team: Team
    spending: DailySpending


class Teams:
    """All teams."""

    def __init__(self, teams: Iterable[Team] = (), spent: Iterable[tuple[str, str, float]] = ()) -> None:
        """spent: dollars as (team, day, dollars); those of teams that are no more are passed over."""
        self._known = {team.name: _Known(team, DailySpending()) for team in teams}
        for name, day, usd in spent:
            self.spend(name, day, usd)

    @property
    def all(self) -> Mapping[str, Team]:
        """Teams by name."""
        return {name: known.team for name, known in self._known.items()}

    def of(self, name: str) -> Team:
        """Return the team of that name. Raises NoSuchTeam."""
        if name not in self._known:
            raise NoSuchTeam(f"there is no team {name!r}")
        return self._known[name].team

    def new(self, name: str) -> None:
        """Check that a team may be made. Raises KeyRefused."""
        if re.fullmatch(PATTERN, name) is None:
            raise KeyRefused(
                f"{name!r} cannot name a team: at most 64 letters, digits, '.', '_' and '-', of which the first is a "
                "letter or a digit"
            )
        if name in self._known:
            raise KeyRefused(f"there is a team {name!r} already")

    def put(self, team: Team) -> None:
        """Take over a team that is new or has changed."""
        known = self._known.get(team.name)
        self._known[team.name] = _Known(team, DailySpending() if known is None else known.spending)

    def drop(self, name: str) -> None:
        """Forget a team."""
        self._known.pop(name, None)

    def spend(self, name: str, day: str, usd: float) -> None:
        """Count the server's dollars of a day; of no team, if there is none of that name."""
        if (known := self._known.get(name)) is not None:
            known.spending.add(day, usd)

    def spent(self, name: str, now_s: float) -> Spent:
        """Return a team's dollars in the period of its quota that `now_s` lies in. Raises NoSuchTeam."""
        return self._known[self.of(name).name].spending.since(self.of(name).quota.per, now_s)

    def limits(self, name: str, now_s: float) -> TeamLimits | None:
        """Return the limits for a key of that team; None if there is no such team."""
        if (known := self._known.get(name)) is None:
            return None
        quota = known.team.quota
        return TeamLimits(known.team, None if quota.usd is None else known.spending.since(quota.per, now_s))
