"""Interface of autoscaling policies, and the bounds and delays that apply to all of them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Protocol

from tandem.policies.base import Registry


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A running replica, as it last reported.

    name: unique name.
    sessions: open sessions, waiting ones included.
    backlog: tokens to compute before its sessions can decode: prompts, and drafts to verify.
    reading: tokens/s that its sessions' readers consume.
    starving: sessions that have begun and whose readers wait for tokens.
    kv_wanted: tokens of KV cache that its sessions hold or wait for.
    kv_capacity: tokens of KV cache.
    places: most sessions in a step.
    prefilled: tokens computed for prompts and rejected drafts since its start.
    generated: output tokens since its start.
    base_s, token_s: step time, see `policies.estimators.step_time`.
    """

    name: str
    sessions: float = 0.0
    backlog: float = 0.0
    reading: float = 0.0
    starving: float = 0.0
    kv_wanted: float = 0.0
    kv_capacity: float = 1.0
    places: float = 1.0
    prefilled: float = 0.0
    generated: float = 0.0
    base_s: float = 0.0
    token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool of replicas.

    now_s: time, seconds of any one clock.
    target: number of replicas decided last, starting ones included.
    replicas: running replicas.
    waiting: requests without a replica, which wait for room or for the first replica.
    start_s: seconds that the latest starts took, until a replica's first report; None if none was seen.
    """

    now_s: float
    target: int
    replicas: tuple[ReplicaState, ...] = ()
    waiting: float = 0.0
    start_s: float | None = None


class AutoscalingPolicy(Protocol):
    def desired(self, pool: PoolState) -> float:
        """Return how many replicas the pool should have, at least 0. Called about every second, with growing times,
        while at least one replica runs."""
        ...


autoscaling: Registry[AutoscalingPolicy] = Registry("autoscaling")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds and delays of a pool's size.

    min_replicas, max_replicas: least and most replicas.
    upscale_delay_s, downscale_delay_s, to_zero_delay_s: how long the policy must ask for more, fewer or no replicas.
    """

    min_replicas: int = 1
    max_replicas: int = 1
    upscale_delay_s: float = 0.0
    downscale_delay_s: float = 60.0
    to_zero_delay_s: float = 300.0


class Starts:
    """Duration of starts, seen from targets and reports. seconds: mean of late; None before the first."""

    NEW = 0.3
    """Weight of a new one."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._asked: deque[float] = deque()  # when those that are starting were asked for, oldest first
        self._running = 0

    def see(self, now_s: float, target: int, running: int) -> None:
        """Note the present target, and how many replicas report."""
        for _ in range(running - self._running):
            if self._asked:
                took_s = now_s - self._asked.popleft()
                before_s = took_s if self.seconds is None else self.seconds
                self.seconds = before_s + self.NEW * (took_s - before_s)
        self._running = running
        while len(self._asked) < target - running:
            self._asked.append(now_s)
        while len(self._asked) > max(0, target - running):
            self._asked.pop()


class Autoscaler:
    """Decides for one pool, with the bounds and delays of Ray Serve's autoscaling. The policy must ask for a change
    throughout the delay; its latest figure then counts. The last replica is removed alone."""

    def __init__(self, policy: AutoscalingPolicy, bounds: Bounds) -> None:
        self._policy, self._bounds = policy, bounds
        self._direction = 0  # of the change that the policy asks for: −1, 0, 1
        self._since_s = 0.0
        self._starts = Starts()

    def decide(self, pool: PoolState) -> int:
        """Return the number of replicas from now on. The policy is told how long starts have taken."""
        bounds = self._bounds
        self._starts.see(pool.now_s, pool.target, len(pool.replicas))
        pool = replace(pool, start_s=self._starts.seconds)
        if not pool.replicas:
            self._direction = 0
            wanted = max(pool.target, 1 if pool.waiting else 0)  # at once: none serves meanwhile
        else:
            wanted = self._after_delay(pool, math.ceil(self._policy.desired(pool) - 1e-9))
        return min(max(wanted, bounds.min_replicas), bounds.max_replicas)

    def _after_delay(self, pool: PoolState, desired: int) -> int:
        bounds, target = self._bounds, pool.target
        desired = min(max(desired, bounds.min_replicas), bounds.max_replicas)
        direction = (desired > target) - (desired < target)
        if direction != self._direction:
            self._direction, self._since_s = direction, pool.now_s
        if direction > 0:
            delay_s = bounds.upscale_delay_s
        elif target == 1:
            delay_s = bounds.to_zero_delay_s
        else:
            delay_s, desired = bounds.downscale_delay_s, max(1, desired)
        if direction == 0 or pool.now_s - self._since_s + 1e-6 < delay_s:
            return target
        self._direction = 0
        return desired
