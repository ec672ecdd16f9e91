"""The interface of scheduling policies, and the simplest of them: first come, first served."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.policies.base import Registry

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """All requests of one engine that want tokens now, as arrays of length N; seconds and tokens.

    arrival: order of arrival; lower is older.
    age_s: since the request arrived.
    received: output tokens so far.
    rate: tokens/s its reader takes in, above 0.
    buffer: output tokens that are unread.
    running: whether it runs now.
    tokens: KV cache that it needs to run until the next decision.
    longest: output tokens it may have at most, as its client said.
    missing: of those tokens, what must first be computed or brought back.
    stored: of the missing, what lies in host memory.
    capacity: tokens of KV cache.
    places: requests that may run at once.
    interval_s: until the next decision.
    base_s, token_s: what a step takes, see StepTimeModel; a position of prefill costs token_s.
    copy_s: bringing one token back from host memory.
    copy_queue_s: until what waits to be copied already is.
    expected: output tokens of a request, as seen so far.
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
    expected: float = 256.0

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def to_come(self) -> Floats:
        """Output tokens still to come, as expected from outputs so far and from what the client allows."""
        left: Floats = np.minimum(
            np.maximum(self.expected - self.received, 1.0), self.longest - self.received
        )
        return left

    @property
    def width(self) -> int:
        """Requests that memory and places let run together: W_static = ⌊M / β⌋, TokenFlow's equation (4), β being what
        a request holds on average over what is left of it."""
        held = int(self.tokens.sum()) + 0.5 * float(self.to_come.sum())
        return max(1, min(self.places, int(self.capacity * len(self) / max(held, 1.0))))


class SchedulingPolicy(Protocol):
    """interval_s: how often it wants to be asked at least while requests wait."""

    interval_s: float

    def choose(self, load: EngineLoad) -> Ints:
        """Indices of the requests that shall run, the most urgent first, without repetition. Their tokens sum to
        at most `capacity` and they are at most `places`, except that a single one may be too large."""
        ...


scheduling: Registry[SchedulingPolicy] = Registry("scheduling")


@scheduling.register("fcfs")
class FirstComeFirstServed:
    """Who runs goes on; then the oldest, as long as there is room. Nobody overtakes, and nobody is preempted as long as
    memory lasts. reserve: share of the output a client allows for which room is kept at admission (0: admit as
    vLLM does; 0.7: conservatively, as SGLang does).
    """

    interval_s = 1.0

    def __init__(self, reserve: float = 0.0) -> None:
        if not 0 <= reserve <= 1:
            raise ValueError(f"reserve must be between 0 and 1, not {reserve}")
        self._reserve = reserve

    def choose(self, load: EngineLoad) -> Ints:
        order = np.lexsort((load.arrival, ~load.running))
        if not self._reserve:
            return fit(load, order, overtake=False)
        kept = np.maximum(self._reserve * load.longest - load.received, 0).astype(np.int64)
        chosen = fit(replace(load, tokens=load.tokens + kept), order, overtake=False)
        running = np.flatnonzero(
            load.running
        )  # growth beyond what was kept displaces nobody as long as there is room
        rest = np.setdiff1d(running, chosen)
        return fit(load, np.concatenate((chosen, rest))) if len(rest) else chosen


def fit(load: EngineLoad, order: Ints, overtake: bool = True) -> Ints:
    """Those of `order` for which there is room, in that order; overtake: smaller ones may pass one for which there
    is none."""
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
