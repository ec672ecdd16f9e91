"""Autoscaling by foresight: replicas for the work that will come when another could have started."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from tandem.policies.autoscaling.base import PoolState, autoscaling
from tandem.policies.autoscaling.work import IDLE, Rate, step_times, width

SAMPLE_S = 5.0
"""Interval of samples and of forecasts."""
JUDGED = 12
"""Samples between two judgements of the forecasts, a minute."""
LEAST = 0.005
"""Replica-seconds per second, below which work is as good as none."""

YOUNG = 60
"""Samples, five minutes, before which the latest work counts as it is."""
LARGEST = 1e6  # replicas
MOST_SCALE = 10.0
"""Most that a forecast is scaled by, so that a load which comes out of nothing does not ask for a hundred times it."""
EVEN, KEPT = 0.8, 0.95
"""Factors on the replica-seconds of the long mean, and of the forecast that counts already, when they are compared: a
few bursts make any forecast seem good."""
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

    What waits already is no reason for more replicas, for only sessions without a place move to new ones; nor are
    sessions ahead of their readers, for answers count with what they take in full steps: prompts go before them
    meanwhile. All sessions' KV cache needs its room, though.

    load, memory: shares of a replica that may be used.
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
        memory: float = 0.8,
    ) -> None:
        if not (load > 0 and 0 < cover <= 1 and 0 < memory <= 1):
            raise ValueError(
                f"load, cover and memory must be above 0, the latter two at most 1, not {load}, {cover}, {memory}"
            )
        if not (season_s > 0 and sample_s > 0 and start_s > 0 and seasons >= 1):
            raise ValueError("season_s, sample_s and start_s must be above 0 seconds, and seasons above 0")
        self._load, self._memory = load, memory
        self._arrivals = Arrivals(sample_s)
        self._rivals = Forecasts(cover, season_s, seasons)
        self._start_s = start_s
        self._due_s = -math.inf

    def desired(self, pool: PoolState) -> float:
        work = self._arrivals.of(pool)
        if pool.now_s >= self._due_s:
            self._due_s = pool.now_s + SAMPLE_S
            start_s = self._start_s if pool.start_s is None else pool.start_s
            self._rivals.note(pool.now_s, work, start_s)
        ahead, sessions = self._rivals.needed, sum(r.sessions for r in pool.replicas) + pool.waiting
        if not sessions and ahead < IDLE:
            return 0.0
        kv = sum(r.kv_wanted / r.kv_capacity for r in pool.replicas if r.kv_capacity)
        return max(1.0, ahead / self._load, min(kv / self._memory, sessions))


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
    SMOOTH = (1 / 24, 1 / 8)
    """Parts of a season over which its course is smoothed: an hour and three of a day."""
    LEVELS = ((20.0, 1.0), (20.0, 0.6), (60.0, 1.0), (60.0, 0.6), (300.0, 1.0))
    """Spans over which today is compared with earlier seasons, and powers of how much of the difference lasts."""

    def __init__(self, cover: float, season_s: float, seasons: int) -> None:
        self.needed = 0.0
        self._cover = cover
        self._season = max(2, round(season_s / SAMPLE_S))  # the rest in samples, too
        self._smooth = [max(1, round(season_s * part / SAMPLE_S / 2)) for part in self.SMOOTH]
        self._values = History(seasons * self._season + self._smooth[-1])
        count = len(self.PAST_S) + len(self.SMOOTH) * (1 + len(self.LEVELS)) + 1
        # what each forecast says of the time of a value
        self._made = [History(max(1, seasons - 1) * self._season) for _ in range(count)]
        self._ahead: deque[Floats] = deque()  # forecasts of the time until a start is over
        self._scales: Floats = np.ones(count)
        self._best = 0
        self._count = 0
        self._at_s = 0.0

    def note(self, now_s: float, value: float, start_s: float) -> None:
        """Add the present value; since the last one it was 0, if that is longer ago, for the pool was empty."""
        missed = round((now_s - self._at_s) / SAMPLE_S) - 1 if self._count else 0
        if missed > 0:
            for history, nothing in ((self._values, 0.0), *((made, LEAST) for made in self._made)):
                history.repeat(nothing, missed)
            self._ahead.clear()
        self._take(value, max(1, round(start_s / SAMPLE_S)))
        self._at_s = now_s

    def _take(self, value: float, ahead: int) -> None:
        self._values.add(value)
        while len(self._ahead) > ahead:  # starts have become faster
            self._ahead.popleft()
        if not self._ahead:
            oldest = np.full(len(self._made), LEAST)
        else:  # where starts have become slower, the earliest there is
            oldest = self._ahead.popleft() if len(self._ahead) == ahead else self._ahead[0]
        for made, said in zip(self._made, oldest, strict=True):
            made.add(float(said))
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
        seasonal: list[float] = []
        for smooth in self._smooth:
            then = self._earlier(values, len(values) + ahead - 1, smooth)
            past = self._earlier(values, len(values) - 1, smooth)
            seasonal.append(long if then is None else then)
            for span_s, power in self.LEVELS:
                now = float(values[-max(1, round(span_s / SAMPLE_S)) :].mean())
                if then is None or past is None:
                    seasonal.append(now)
                else:
                    seasonal.append(then * ((now + LEAST) / (past + LEAST)) ** power)
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
        if len(self._made[0].all()) < max(YOUNG, ahead):
            return
        costs = []
        for i, made in enumerate(self._made):
            said = made.all()
            came = self._values.all()[-len(said) :]
            scale = _covering(came / said, came, self._cover)
            self._scales[i] = min(scale, MOST_SCALE)
            kept = np.lib.stride_tricks.sliding_window_view(said, ahead).max(axis=1)  # until a start is over
            costs.append(scale * float(kept.mean()) if scale <= MOST_SCALE else math.inf)
        costs[-1] = EVEN * min(costs[-1], LARGEST)  # it counts if nothing else does
        costs[self._best] *= KEPT
        self._best = int(np.argmin(costs))


def _covering(ratios: Floats, weights: Floats, cover: float) -> float:
    """Return the ratio that a share of the weight does not exceed; 1 without any weight."""
    order = ratios.argsort()
    weight = weights[order].cumsum()
    if not weight[-1]:
        return 1.0
    place = int(np.searchsorted(weight, cover * weight[-1]))
    return float(ratios[order][min(len(order) - 1, place)])


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

    def repeat(self, number: float, times: int) -> None:
        """Add one several times."""
        kept = np.append(self.all(), np.full(min(times, self._most), number))[-self._most :]
        self._end = len(kept)
        self._numbers[: self._end] = kept

    def all(self) -> Floats:
        """Return them, oldest first."""
        return self._numbers[max(0, self._end - self._most) : self._end]
