"""Map of modes: which one answers best where, over settings that vary, and what policy `auto` makes of it.

Every point of the grid is simulated once in each mode that the configuration serves, for all requests, and once with
`auto`, which chooses for each.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from tandem.deployments.modes import MODES
from tandem.policies.routing.objectives import OBJECTIVES
from tandem.simulator.config.errors import ConfigError
from tandem.simulator.results.loss import loss_usd
from tandem.simulator.results.mode_map import AUTO, Played, Point, points
from tandem.simulator.runs.sweep import Variant, grid
from tandem.simulator.runs.tasks import resumable_map


class Asked(NamedTuple):
    """A simulation to run. objective: name, of OBJECTIVES."""

    mode: str
    variant: Variant
    objective: str

    @property
    def key(self) -> str:
        """Key of what it gives."""
        return hashlib.sha256(f"{self.variant.key} {self.objective}".encode()).hexdigest()[:24]


def asked(
    raw: Mapping[str, Any],
    axes: Sequence[str],
    objective: str = "balanced",
    origin: str = "configuration",
    fixed: Sequence[str] = (),
) -> list[Asked]:
    """Return the simulations of a map. axes, fixed: as in `grid`. Raises ConfigError before anything runs."""
    if objective not in OBJECTIVES:
        raise ConfigError(f"objective: one of {', '.join(OBJECTIVES)}, not {objective!r}")
    auto = f"router.collaboration={{name: auto, parameters: {{objective: {objective}}}}}"
    found = [
        Asked(AUTO, variant, objective) for variant in grid(raw, axes, origin, [*fixed, "mode=null", auto])
    ]
    for mode in MODES:
        try:
            variants = grid(raw, axes, origin, [*fixed, f"mode={mode}"])
        except ConfigError:  # this configuration has no part of it
            continue
        found += (Asked(mode, variant, objective) for variant in variants)
    return found


def play_all(simulations: Sequence[Asked], out: Path | None = None) -> Iterator[Played]:
    """Run them as Ray tasks; yield as they complete, in any order, those found in `out` first. Raises ForeignFile."""
    by_key = {each.key: each for each in simulations}
    return resumable_map(play, by_key, lambda played: played.key, Played, out, chunk=1)


def mapped(simulations: Sequence[Asked], played: Iterable[Played]) -> list[Point]:
    """Return the map's points in the grid's order, with its own settings, by whichever a file knows a simulation."""
    by_key = {each.key: each for each in played}
    return points(
        [msgspec.structs.replace(by_key[each.key], settings=each.variant.settings) for each in simulations]
    )


def play(asked: Asked) -> Played:
    """Run one simulation, in this process."""
    from tandem.simulator.runs.run import simulate

    answers = simulate(asked.variant.config).answers
    objective, ended = OBJECTIVES[asked.objective], Counter(a.mode for a in answers if a.finished)
    return Played(
        asked.key,
        asked.variant.settings,
        asked.mode,
        fmean(loss_usd(answer, objective) for answer in answers),
        fmean(0.0 if a.stats is None else a.stats.usd for a in answers),
        _mean([a.ttft_s for a in answers]),
        _mean([a.tpot_s for a in answers]),
        ended.total() / len(answers),
        {mode: count / len(answers) for mode, count in sorted(ended.items())},
    )


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else None
