"""The interface of autoscaling policies, and the bounds and delays that hold for all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from tandem.policies.base import Registry


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica that is up, as it last told of itself.

    name: tells it from all others.
    sessions: open, waiting ones included.
    backlog: tokens to be computed before its sessions decode: of prompts, and of drafts that wait to be verified.
    reading: tokens/s that the readers of its sessions take in.
    starving: of those sessions, how many have begun and keep their readers waiting.
    kv_wanted: tokens of KV cache that they hold, or wait for.
    kv_capacity: tokens of KV cache.
    places: sessions that a step takes.
    prefilled, generated: tokens since it started: computed for prompts and for drafts that were rejected; of outputs.
    base_s, token_s: what a step takes, see `policies.estimators.step_time`.
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

    now_s: of any one clock.
    target: replicas that there are to be since the last decision, starting ones included.
    replicas: those that are up.
    waiting: requests that no replica has yet: they wait for room, or for a first one.
    """

    now_s: float
    target: int
    replicas: tuple[ReplicaState, ...] = ()
    waiting: float = 0.0


class AutoscalingPolicy(Protocol):
    def desired(self, pool: PoolState) -> float:
        """Replicas that the pool should have, 0 or more; at least one of them is up. Asked every second or so, each
        time a little later."""
        ...


autoscaling: Registry[AutoscalingPolicy] = Registry("autoscaling")


@dataclass(frozen=True, slots=True)
class Bounds:
    """min_replicas, max_replicas: of the pool.
    upscale_delay_s, downscale_delay_s, to_zero_delay_s: for so long the policy must want more, fewer, or none.
    """

    min_replicas: int = 1
    max_replicas: int = 1
    upscale_delay_s: float = 0.0
    downscale_delay_s: float = 60.0
    to_zero_delay_s: float = 300.0


class Autoscaler:
    """Decides for one pool, with the bounds and delays of Ray Serve's autoscaling: a wish counts when it has been there
    for so long without a break, and then as it is last; the last replica goes alone."""

    def __init__(self, policy: AutoscalingPolicy, bounds: Bounds) -> None:
        self._policy, self._bounds = policy, bounds
        self._direction = 0  # that the policy wants to go: −1, 0, 1
        self._since_s = 0.0

    def decide(self, pool: PoolState) -> int:
        """Replicas that there are to be from now on."""
        bounds = self._bounds
        if not pool.replicas:
            self._direction = 0
            wanted = max(pool.target, 1 if pool.waiting else 0)  # at once: nobody is served meanwhile
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
