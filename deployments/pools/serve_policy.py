"""The autoscaling policy that Ray Serve calls, in a module of its own.

Serve pickles the policy's whole module by value, which fails for a pydantic model in it; imported ones are pickled by
reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tandem.deployments.pools.autoscaling import EVERY_S, TOLD, WAITING, AutoscalingSettings
from tandem.policies.autoscaling import PoolState, ReplicaState

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext


class ServePolicy:
    """Decides for Ray Serve how many replicas one pool should have, from their last reports.

    Serve calls it many times a second, and starts a first replica by itself when a handle waits for one. Bounds and
    delays are applied here rather than by Serve, so that they are the same in virtual time.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """settings: an AutoscalingSettings as plain data."""
        self._autoscaler = AutoscalingSettings.model_validate(settings).autoscaler()
        self._decided_s = float("-inf")
        self._decision = 0

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas to have; this object keeps its own state."""
        now_s = context.current_time or 0.0
        if 0 <= now_s - self._decided_s < EVERY_S and self._decision == context.target_num_replicas:
            return self._decision, {}
        told: dict[str, dict[str, float]] = {}
        for metric, series in (context.raw_metrics or {}).items():
            for replica, points in series.items() if metric in TOLD else ():
                if points:
                    told.setdefault(replica.unique_id, {})[metric] = points[-1].value
        waiting = sum(numbers.pop(WAITING, 0.0) for numbers in told.values())
        states = tuple(ReplicaState(name, **numbers) for name, numbers in sorted(told.items()))
        pool = PoolState(now_s, context.target_num_replicas, states, waiting)
        self._decided_s, self._decision = now_s, self._autoscaler.decide(pool)
        return self._decision, {}
