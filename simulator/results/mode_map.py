"""Points of a map of modes: what every mode costs there, and what policy `auto` makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

AUTO = "auto"
"""Stands in place of a mode where the policy chooses."""


class Played(msgspec.Struct, frozen=True):
    """One simulation of a map. Means are of all answers that have such a figure.

    key: of its configuration and objective.
    settings: what varies.
    mode: of all requests, or AUTO.
    loss_usd: what an answer has cost in the objective, dollars.
    usd: the part of it that is paid.
    ttft_s, tpot_s: seconds; None if no answer has any.
    finished: share of the answers.
    picked: share of the answers by the mode that they ended in.
    """

    key: str
    settings: dict[str, Any]
    mode: str
    loss_usd: float
    usd: float
    ttft_s: float | None
    tpot_s: float | None
    finished: float
    picked: dict[str, float]


class Point(NamedTuple):
    """One point of a map.

    fixed: modes that every answer was in and that finished some, the best first.
    auto: policy `auto`.
    """

    settings: Mapping[str, Any]
    fixed: list[Played]
    auto: Played

    @property
    def ahead(self) -> float:
        """Share of the runner-up's loss that the best mode saves; 0 without one."""
        return 1.0 - self.fixed[0].loss_usd / self.fixed[1].loss_usd if len(self.fixed) > 1 else 0.0

    @property
    def auto_ahead(self) -> float:
        """Share of the best fixed mode's loss that `auto` saves; below 0 if it loses."""
        return 1.0 - self.auto.loss_usd / self.fixed[0].loss_usd

    @property
    def favourite(self) -> str:
        """Mode that `auto` has most answers in."""
        return max(self.auto.picked, key=self.auto.picked.__getitem__, default="")


def points(played: Sequence[Played]) -> list[Point]:
    """Return the points of a map, in the order in which their settings come first."""
    places: dict[str, list[Played]] = {}
    for each in played:
        places.setdefault(repr(each.settings), []).append(each)
    return [
        Point(
            here[0].settings,
            sorted((e for e in here if e.mode != AUTO and e.finished), key=lambda e: e.loss_usd),
            next(e for e in here if e.mode == AUTO),
        )
        for here in places.values()
    ]
