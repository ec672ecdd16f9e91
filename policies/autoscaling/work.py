"""Autoscaling by work: seconds of steps, and tokens of KV cache."""

from __future__ import annotations

import math

from tandem.policies.autoscaling.base import PoolState, ReplicaState, autoscaling

IDLE = 0.01
"""Work below which a replica counts as idle."""


@autoscaling.register("work")
class Work:
    """Sizes a pool by its work in replica-seconds per second:

        ρ = prefill rate · token_s + decode rate · (token_s + base_s / width)

    where `width` is the number of sessions that share a step of a full replica. Prompts arrive at their recent rate.
    Outputs are needed at their recent rate, or as fast as their readers read if that is faster: a session ahead of its
    reader needs nothing now. The pool gets so many replicas that

        ρ ≤ load · replicas,  KV cache wanted ≤ memory · KV cache,  and the token backlog is gone after `clear_s`,

    and more by the share of sessions that keep their readers waiting, if that exceeds `patience`.

    load, memory: shares of a replica that may be used.
    clear_s: seconds in which the backlog should be computed; more replicas would start too late to shorten it.
    patience: tolerated share of sessions whose readers wait.
    window_s: seconds over which rates are averaged; the backlog over a quarter of it.
    """

    def __init__(
        self,
        load: float = 0.5,
        memory: float = 0.8,
        clear_s: float = 20.0,
        patience: float = 0.2,
        window_s: float = 60.0,
    ) -> None:
        for name, share in (("load", load), ("memory", memory), ("patience", patience)):
            if not 0 < share <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {share}")
        if not (clear_s > 0 and window_s > 0):
            raise ValueError("clear_s and window_s must be above 0 seconds")
        self._load, self._memory, self._clear_s, self._patience = load, memory, clear_s, patience
        self._prefill, self._decode = Rate(window_s), Rate(window_s)
        self._backlog_s, self._starving = Mean(window_s / 4), Mean(window_s / 4)

    def desired(self, pool: PoolState) -> float:
        replicas = pool.replicas
        prefill = self._prefill.of(pool.now_s, {r.name: r.prefilled for r in replicas})
        decode = self._decode.of(pool.now_s, {r.name: r.generated for r in replicas})
        decode = max(decode, sum(r.reading for r in replicas))
        sessions = sum(r.sessions for r in replicas)
        base_s, token_s = step_times(replicas)
        work = prefill * token_s + decode * (token_s + base_s / width(replicas))
        backlog_s = sum(r.backlog * r.token_s for r in replicas)
        if sessions and pool.waiting:  # assume that waiting requests resemble the running ones
            backlog_s *= 1 + pool.waiting / sessions
        backlog_s = self._backlog_s.of(pool.now_s, backlog_s)
        kv = sum(r.kv_wanted / r.kv_capacity for r in replicas if r.kv_capacity)
        needed = max(work / self._load, work + backlog_s / self._clear_s, kv / self._memory)
        starving = sum(r.starving for r in replicas) / max(sessions, 1)
        if (share := self._starving.of(pool.now_s, starving)) > self._patience:
            needed = max(needed, sum(r.sessions > 0 for r in replicas) * (1 + share))
        if not sessions and not pool.waiting and work < IDLE:
            return 0.0
        return max(min(needed, sessions + pool.waiting), 1.0)  # further replicas would have no session


def step_times(replicas: tuple[ReplicaState, ...]) -> tuple[float, float]:
    """Return mean base_s and token_s of the replicas that have worked; the others have not learnt theirs yet."""
    worked = [r for r in replicas if r.prefilled or r.generated] or replicas
    return sum(r.base_s for r in worked) / len(worked), sum(r.token_s for r in worked) / len(worked)


def width(replicas: tuple[ReplicaState, ...]) -> float:
    """Return how many sessions share a step of a full replica, limited by places and KV cache."""
    places = sum(r.places for r in replicas) / len(replicas)
    sessions, wanted = sum(r.sessions for r in replicas), sum(r.kv_wanted for r in replicas)
    if not wanted:
        return places
    room = sum(r.kv_capacity for r in replicas) / len(replicas)
    return max(1.0, min(places, room * sessions / wanted))


class Rate:
    """Growth of the counters of a pool's members, per second, as an average that decays over `window_s`. It starts at
    0 and takes a quarter of that time to warm up."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._counts: dict[str, float] = {}
        self._at_s = -math.inf
        self._sum = self._weight = 0.0

    def of(self, now_s: float, counts: dict[str, float]) -> float:
        """Return the rate, given the current counters."""
        passed_s = now_s - self._at_s
        if passed_s > 0:
            if self._counts.keys().isdisjoint(counts):  # the pool has been empty
                self._sum = self._weight = 0.0
            else:
                # kept since a member was first seen: one that missed a report is not a new one
                grown = sum(max(0.0, count - self._counts.get(name, count)) for name, count in counts.items())
                new_s = -math.expm1(-passed_s / self._window_s) * self._window_s
                fade = 1 - new_s / self._window_s
                self._sum = self._sum * fade + grown * (new_s / passed_s)
                self._weight = self._weight * fade + new_s
            self._counts, self._at_s = counts, now_s
        return self._sum / max(self._weight, self._window_s / 4)


class Mean:
    """Average of a value sampled irregularly, decaying over `window_s`."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._at_s = -math.inf
        self._mean = 0.0

    def of(self, now_s: float, value: float) -> float:
        """Return the mean, given the current value."""
        new = -math.expm1(-max(0.0, now_s - self._at_s) / self._window_s)
        self._mean += new * (value - self._mean)
        self._at_s = now_s
        return self._mean
