"""Costs of work in a live deployment: its engines' counters, sampled under load, and lines fitted to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from tandem.engine.base import Engine, EngineStats, Sampling
from tandem.engine.split.base import OuterEngine
from tandem.simulator.hardware import MeasuredEnds, MeasuredTimer

SAMPLE_S = 0.01  # less than a step takes
SELDOM_S = 0.1  # where a sample makes a step longer

Count = Callable[[EngineStats], tuple[int, ...]]
"""Function of an engine's counters: steps so far, then what they held, on which their time depends."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Fitted costs of work.

    timer: of the target's steps.
    call_s: seconds of a call of the target that waits for no step.
    ends: of the device's part of a split model, or None.
    """

    timer: MeasuredTimer
    call_s: float
    ends: MeasuredEnds | None = None


class Samples:
    """Samples of one engine under load.

    rows: contents of its steps since the previous sample, as `count` returns them.
    steps_s: seconds of these steps.
    calls_s: seconds of its calls that wait for no step.
    """

    def __init__(self, count: Count, waits: bool = False) -> None:
        """waits: the engine tells its counters between two steps, which takes it time."""
        self._count, self._waits = count, waits
        self.rows: list[tuple[int, ...]] = []
        self.steps_s: list[float] = []
        self.calls_s: list[float] = []

    def __add__(self, other: Samples) -> Samples:
        both = Samples(self._count, self._waits)
        for name in ("rows", "steps_s", "calls_s"):
            setattr(both, name, getattr(self, name) + getattr(other, name))
        return both

    async def watch(self, engine: Engine | OuterEngine) -> None:
        """Sample the engine's counters until cancelled."""
        last = await engine.stats()
        while True:
            await asyncio.sleep(SELDOM_S if self._waits else SAMPLE_S)
            began_s = time.perf_counter()
            if self._waits:
                idle = Sampling(max_tokens=1, forced=True)  # nothing is computed before there are drafts
                session = await engine.open([1], idle)
                self.calls_s.append(time.perf_counter() - began_s)
                await session.cancel()
                now = await engine.stats()
            else:
                now = await engine.stats()
                self.calls_s.append(time.perf_counter() - began_s)
            if now.steps == last.steps:
                continue
            before, after = self._count(last), self._count(now)
            self.rows.append(tuple(b - a for a, b in zip(before, after, strict=True)))
            self.steps_s.append(now.step_s - last.step_s)
            last = now

    def fitted(self) -> list[float]:
        """Seconds of each thing that was counted; nothing of an engine that is never asked."""
        return fit(self.rows, self.steps_s) if self.rows else [0.0]


@dataclass(frozen=True, slots=True)
class Profile:
    """Samples of a live deployment at work.

    target: of the engine in the cloud.
    ends: of the device's part of a split model, where there is one.
    judged_s: what that took to judge a token when it had nothing else to do, seconds.
    """

    target: Samples
    ends: Samples | None = None
    judged_s: list[float] = field(default_factory=list)

    def __add__(self, other: Profile) -> Profile:
        ends = None if self.ends is None or other.ends is None else self.ends + other.ends
        return Profile(self.target + other.target, ends, self.judged_s + other.judged_s)

    def costs(self) -> Costs:
        """Step times, regressed on what the steps hold, and medians of the rest."""
        return Costs(MeasuredTimer(*self.target.fitted()), median(self.target.calls_s), self._ends())

    def _ends(self) -> MeasuredEnds | None:
        """Nearly every step drafts, and so its time is that of the head as well."""
        if self.ends is None:
            return None
        base_s, token_s = self.ends.fitted()
        head_s = median(self.judged_s)
        return MeasuredEnds(max(0.0, base_s - head_s), token_s, head_s=head_s)


def whole(stats: EngineStats) -> tuple[int, ...]:
    """Return the counts of a whole model, or the middle of one: steps; positions of prompts, of drafts, and the one
    before each token of its own; and these tokens."""
    own = stats.tokens_generated - stats.tokens_accepted
    return stats.steps, stats.tokens_prefilled + stats.tokens_verified + own, own


def outer(stats: EngineStats) -> tuple[int, ...]:
    """Return the counts of a model's two ends, which judge between steps: steps, and positions."""
    return stats.steps, stats.tokens_prefilled + stats.tokens_drafted


def fit(rows: Sequence[Sequence[float]], times_s: Sequence[float]) -> list[float]:
    """Least squares with no coefficient below 0. The first column counts the steps in a row: the more there are, the
    less a row's mean is due to chance."""
    weights = 1 / np.sqrt([row[0] for row in rows])
    matrix, times = np.asarray(rows) * weights[:, None], np.asarray(times_s) * weights
    columns = list(range(matrix.shape[1]))
    while True:
        solution = np.linalg.lstsq(matrix[:, columns], times, rcond=None)[0]
        if solution.min() >= 0:
            break
        del columns[int(solution.argmin())]
    coefficients = [0.0] * matrix.shape[1]
    for column, value in zip(columns, solution, strict=True):
        coefficients[column] = float(value)
    return coefficients
