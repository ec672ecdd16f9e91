"""Interface of scheduling policies, and the simplest one: first come, first served."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.policies.base import Registry

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

GROWTH = (
    0.35  # share of its further output that a request holds on average; half, if none ended before its limit
)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """All requests of one engine that want tokens now, as arrays of length N; seconds and tokens.

    arrival: order of arrival; lower is older.
    age_s: since the request arrived.
    received: output tokens so far.
    rate: the reader's tokens/s, above 0.
    buffer: unread output tokens.
    running: whether it runs now.
    tokens: KV cache that it needs to run until the next decision.
    longest: the client's limit of output tokens.
    missing: of `tokens`, what must first be computed or swapped in.
    stored: of `missing`, what lies in host memory.
    capacity: tokens of KV cache.
    places: most requests that may run at once.
    now_s: time of the decision.
    interval_s: until the next decision.
    base_s, token_s: step time, see StepTimeModel; a position of prefill costs token_s.
    copy_s: swapping in one token from host memory.
    copy_queue_s: until the queued copies are done.
    expected: mean output tokens of a request, as seen so far.
    """

    arrival: Ints
    age_s: Floats
    received: Ints
    rate: Floats
    buffer: Floats
    running: Bools
    tokens: Ints
    longest: Ints
    missing: Ints
    stored: Ints
    capacity: int
    places: int
    interval_s: float
    base_s: float
    token_s: float
    copy_s: float = float("inf")
    copy_queue_s: float = 0.0
    now_s: float = 0.0
    expected: float = 256.0

    def __len__(self) -> int:
        return len(self.arrival)

    def part(self, indices: Ints) -> EngineLoad:
        """Return the load of some of the requests, in this order."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in values.items():
            values[name] = value[indices] if isinstance(value, np.ndarray) else value
        return EngineLoad(**values)

    @property
    def to_come(self) -> Floats:
        """Expected further output tokens, from the outputs so far and the client's limit."""
        left: Floats = np.minimum(
            np.maximum(self.expected - self.received, 1.0), self.longest - self.received
        )
        return left

    @property
    def width(self) -> int:
        """Requests that can run together by memory and places: W_static = ⌊M / β⌋, TokenFlow's equation (4), with β
        the KV cache that a request holds on average over the rest of its output."""
        held = int(self.tokens.sum()) + GROWTH * float(self.to_come.sum())
        return max(1, min(self.places, int(self.capacity * len(self) / max(held, 1.0))))


class SchedulingPolicy(Protocol):
    """Policy of one engine. interval_s: longest time between decisions while requests wait."""

    interval_s: float

    def choose(self, load: EngineLoad) -> Ints:
        """Return indices of the requests to run, the most urgent first, without repetition. Their tokens sum to at
        most `capacity` and there are at most `places`, except that a single one may be too large."""
        ...


scheduling: Registry[SchedulingPolicy] = Registry("scheduling")


@scheduling.register("fcfs")
class FirstComeFirstServed:
    """Keeps running requests, then admits the oldest while there is room. None overtakes, and none is preempted while
    memory lasts.

    reserve: share of the client's output limit for which room is kept at admission (0: admit as vLLM does; 0.7:
        conservatively, as SGLang does).
    interval_s: seconds between decisions; 0: before every step, as vLLM does.
    """

    def __init__(self, reserve: float = 0.0, interval_s: float = 1.0) -> None:
        if not 0 <= reserve <= 1 or interval_s < 0:
            raise ValueError(f"needs 0 ≤ reserve ≤ 1 and interval_s ≥ 0, not {reserve}, {interval_s}")
        self._reserve, self.interval_s = reserve, interval_s

    def choose(self, load: EngineLoad) -> Ints:
        order = np.lexsort((load.arrival, ~load.running))
        if not self._reserve:
            return fit(load, order, overtake=False)
        kept = np.maximum(self._reserve * load.longest - load.received, 0).astype(np.int64)
        chosen = fit(replace(load, tokens=load.tokens + kept), order, overtake=False)
        running = np.flatnonzero(
            load.running
        )  # growth beyond the reserve displaces no request while there is room
        rest = np.setdiff1d(running, chosen)
        return fit(load, np.concatenate((chosen, rest))) if len(rest) else chosen


def fit(load: EngineLoad, order: Ints, overtake: bool = True) -> Ints:
    """Return the requests of `order` that fit, in that order; overtake: smaller ones may pass one that does not fit."""
    sums = load.tokens[order].cumsum()
    count = min(int(sums.searchsorted(load.capacity, side="right")), load.places)
    if count == 0 and len(order):
        return order[:1]
    chosen, rest = order[:count], order[count:]
    if not overtake or not len(rest) or count >= load.places:
        return chosen
    left, more = load.capacity - int(sums[count - 1]), []
    small = rest[load.tokens[rest] <= left]
    for i in small.tolist():
        if load.tokens[i] <= left:
            left -= int(load.tokens[i])
            more.append(i)
            if count + len(more) >= load.places:
                break
    return np.concatenate((chosen, np.array(more, dtype=np.int64))) if more else chosen
