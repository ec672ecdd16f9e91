"""Autoscaling by foresight: replicas for the work that will come when another could have started."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from tandem.policies.autoscaling.base import PoolState, autoscaling
from tandem.policies.autoscaling.work import IDLE, Rate, Work, step_times, width

SAMPLE_S = 5.0
"""Interval of samples and of forecasts."""
SMOOTH = 1 / 24
"""Part of a season over which its course is smoothed: an hour of a day."""
JUDGED = 12
"""Samples between two judgements of the forecasts, a minute."""
LEAST = 0.005
"""Replica-seconds per second, below which work is as good as none."""

FLOOR = 0.1
"""Part of the long mean that every forecast says at least: there may always be something."""

Floats = NDArray[np.float64]


@autoscaling.register("forecast")
class Forecast:
    """Sizes a pool for the work to come, in replica-seconds per second, at the moment at which a replica that starts
    now would be up.

    Several forecasts compete: the work of now, and of more and more seconds before now; the work at this time of
    earlier seasons, as it was, and changed by as much as today differs from them; and the long mean. Each is scaled by
    so much that it would have had room for a share `cover` of the work that came, and the one counts that would have
    needed the fewest replica-seconds for it. So a pool has few warm spares under a load that is known ahead, and as
    many as a fixed one where bursts come and go faster than a replica starts. It shrinks to what suffices until another
    start would be over.

    What has come already counts as in `work`, with `window_s`, `clear_s`, `memory` and `patience`: a session ahead of
    its reader needs nothing now.

    load: share of a replica that may be used.
    cover: share of the work that the pool has room for when it comes; the rest waits.
    season_s: seconds after which work recurs, a day.
    seasons: how many of them are remembered.
    sample_s: seconds over which work is averaged; a shorter surge may wait.
    start_s: seconds that a start takes, until one was seen.
    """

    def __init__(
        self,
        load: float = 0.8,
        cover: float = 0.9,
        season_s: float = 86_400.0,
        seasons: int = 3,
        sample_s: float = 15.0,
        start_s: float = 60.0,
        window_s: float = 30.0,
        clear_s: float = 20.0,
        memory: float = 0.8,
        patience: float = 0.2,
    ) -> None:
        if not 0 < cover <= 1:
            raise ValueError(f"cover must be above 0 and at most 1, not {cover}")
        if not (season_s > 0 and sample_s > 0 and start_s > 0 and seasons >= 1):
            raise ValueError("season_s, sample_s and start_s must be above 0 seconds, and seasons above 0")
        self._now = Work(load, memory, clear_s, patience, window_s)
        self._load = load
        self._arrivals = Arrivals(sample_s)
        self._rivals = Forecasts(cover, season_s, seasons)
        self._start_s = start_s
        self._due_s = -math.inf

    def desired(self, pool: PoolState) -> float:
        work = self._arrivals.of(pool)
        now = self._now.desired(pool)
        if pool.now_s >= self._due_s:
            self._due_s = pool.now_s + SAMPLE_S
            start_s = self._start_s if pool.start_s is None else pool.start_s
            self._rivals.note(pool.now_s, work, start_s)
        ahead = self._rivals.needed
        if not now and ahead < IDLE:
            return 0.0
        return max(now, ahead / self._load)


class Arrivals:
    """Work that arrives, in replica-seconds per second: of prompts when they come, and of their answers at once, as
    long as answers have been beside prompts of late."""

    LATE_S = 300.0

    def __init__(self, window_s: float) -> None:
        self._prompts = Rate(window_s)
        self._prefilled, self._generated = Rate(self.LATE_S), Rate(self.LATE_S)

    def of(self, pool: PoolState) -> float:
        """Return the present rate."""
        now_s, replicas = pool.now_s, pool.replicas
        came = self._prompts.of(now_s, {r.name: r.prefilled + r.backlog for r in replicas})
        prefilled = self._prefilled.of(now_s, {r.name: r.prefilled for r in replicas})
        generated = self._generated.of(now_s, {r.name: r.generated for r in replicas})
        base_s, token_s = step_times(replicas)
        answers = generated / prefilled if prefilled else 0.0
        return came * (token_s + answers * (token_s + base_s / width(replicas)))


class Forecasts:
    """Forecasts of a value that may recur after a season, sampled at an even interval.

    needed: what has room for the share `cover` of the value from now until a start is over.
    """

    PAST_S = (10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
    """Spans whose mean is a forecast each."""
    LEVEL_S = (60.0, 300.0)
    """Spans over which today is compared with earlier seasons."""

    def __init__(self, cover: float, season_s: float, seasons: int) -> None:
        self.needed = 0.0
        self._cover = cover
        self._season = max(2, round(season_s / SAMPLE_S))  # the rest in samples, too
        self._smooth = max(1, round(season_s * SMOOTH / SAMPLE_S / 2))
        self._values = History(seasons * self._season + self._smooth)
        count = len(self.PAST_S) + 1 + len(self.LEVEL_S) + 1
        self._made = [
            History(self._season) for _ in range(count)
        ]  # what each forecast says of the time of a value
        self._ahead: deque[Floats] = deque()  # forecasts of the time until a start is over
        self._scales: Floats = np.ones(count)
        self._best = 0
        self._count = 0
        self._at_s = 0.0

    def note(self, now_s: float, value: float, start_s: float) -> None:
        """Add the present value; since the last one it was 0, if that is longer ago, for the pool was empty."""
        missed = round((now_s - self._at_s) / SAMPLE_S) - 1 if self._count else 0
        for one in (*[0.0] * min(missed, self._season), value):
            self._take(one, max(1, round(start_s / SAMPLE_S)))
        self._at_s = now_s

    def _take(self, value: float, ahead: int) -> None:
        self._values.add(value)
        while len(self._ahead) > ahead:  # starts have become faster
            self._ahead.popleft()
        if len(self._ahead) == ahead:
            for made, said in zip(self._made, self._ahead.popleft(), strict=True):
                made.add(said)
        self._ahead.append(self._forecast(ahead))
        self._count += 1
        if self._count % JUDGED == 0:
            self._judge(ahead)
        self.needed = max(float(said[self._best]) for said in self._ahead) * float(self._scales[self._best])

    def _forecast(self, ahead: int) -> Floats:
        """Return what each forecast says of a later sample."""
        values = self._values.all()
        means = [float(values[-max(1, round(span_s / SAMPLE_S)) :].mean()) for span_s in self.PAST_S]
        long = float(values.mean())
        then = self._earlier(values, len(values) + ahead - 1, self._smooth)
        seasonal = [long if then is None else then]
        for span_s in self.LEVEL_S:
            span = max(1, round(span_s / SAMPLE_S / 2))
            past, now = self._earlier(values, len(values) - 1 - span, span), float(values[-2 * span :].mean())
            if then is None or past is None:
                seasonal.append(now)
            else:
                seasonal.append(then * (now + LEAST) / (past + LEAST))
        return np.maximum([*means, *seasonal, long], max(LEAST, FLOOR * long))

    def _earlier(self, values: Floats, moment: int, around: int) -> float | None:
        """Return the mean around this moment of earlier seasons; None before the first is over."""
        total, count = 0.0, 0
        for begin in range(moment - self._season, -1, -self._season):
            if begin >= len(values):
                continue
            part = values[max(0, begin - around) : begin + around + 1]
            total, count = total + float(part.sum()), count + len(part)
        return total / count if count else None

    def _judge(self, ahead: int) -> None:
        """Scale each forecast, and choose among them."""
        costs = []
        for i, made in enumerate(self._made):
            said = made.all()
            came = self._values.all()[-len(said) :] if len(said) else said
            if len(said) < JUDGED:
                return
            ratio = came / said
            order = ratio.argsort()
            weight = came[order].cumsum()
            scale = 1.0
            if weight[-1] > 0:
                scale = float(
                    ratio[order][min(len(order) - 1, int(np.searchsorted(weight, self._cover * weight[-1])))]
                )
            paid = np.lib.stride_tricks.sliding_window_view(said, min(ahead, len(said))).max(axis=1)
            self._scales[i] = scale
            costs.append(scale * float(paid.mean()))
        self._best = int(np.argmin(costs))


class History:
    """The latest numbers, up to some."""

    def __init__(self, most: int) -> None:
        self._numbers = np.zeros(2 * most)
        self._most, self._end = most, 0

    def add(self, number: float) -> None:
        """Add one."""
        if self._end == len(self._numbers):
            self._numbers[: self._most] = self._numbers[-self._most :]
            self._end = self._most
        self._numbers[self._end] = number
        self._end += 1

    def all(self) -> Floats:
        """Return them, oldest first."""
        return self._numbers[max(0, self._end - self._most) : self._end]
