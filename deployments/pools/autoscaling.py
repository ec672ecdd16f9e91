"""Pools that grow and shrink: the settings, what a replica tells of itself, and the policy as Ray Serve calls it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from tandem.engine.base import EngineStats
from tandem.engine.config import PolicyChoice, Strict
from tandem.policies.autoscaling import (
    Autoscaler,
    AutoscalingPolicy,
    Bounds,
    PoolState,
    ReplicaState,
    autoscaling,
)

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

EVERY_S = 1.0
"""How often replicas tell of themselves, and a pool's size is decided."""
WAITING = "waiting"
"""What a replica tells besides: its share of the requests that no replica has yet."""


class AutoscalingChoice(PolicyChoice[AutoscalingPolicy]):
    """An autoscaling policy."""

    family = autoscaling


class AutoscalingSettings(Strict):
    """A pool that grows and shrinks with its work.

    min_replicas, max_replicas: its bounds; with 0 it may be empty while nobody asks.
    policy: how many replicas it should have.
    upscale_delay_s, downscale_delay_s, to_zero_delay_s: for so long without a break the policy must want more, fewer,
        or none.
    """

    min_replicas: int = Field(1, ge=0, le=1000)
    max_replicas: int = Field(ge=1, le=1000)
    policy: AutoscalingChoice = AutoscalingChoice(name="work")
    upscale_delay_s: float = Field(0.0, ge=0)
    downscale_delay_s: float = Field(60.0, ge=0)
    to_zero_delay_s: float = Field(300.0, ge=0)

    @model_validator(mode="after")
    def _in_order(self) -> AutoscalingSettings:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas may not be above max_replicas, but {self.min_replicas} is above {self.max_replicas}"
            )
        return self

    def autoscaler(self) -> Autoscaler:
        """A new one, for one pool."""
        bounds = Bounds(
            self.min_replicas,
            self.max_replicas,
            self.upscale_delay_s,
            self.downscale_delay_s,
            self.to_zero_delay_s,
        )
        return Autoscaler(self.policy.create(), bounds)


def replica_state(name: str, stats: EngineStats, places: int) -> ReplicaState:
    """What a replica tells of itself. places: sessions that a step takes."""
    work, size = stats.outstanding, stats.block_size
    return ReplicaState(
        name,
        sessions=stats.sessions,
        backlog=work.backlog,
        reading=work.reading,
        starving=work.starving,
        kv_wanted=(stats.blocks_total - stats.blocks_free) * size + work.awaited,
        kv_capacity=stats.blocks_total * size,
        places=places,
        prefilled=stats.tokens_prefilled + stats.tokens_verified - stats.tokens_accepted,
        generated=stats.tokens_generated,
        base_s=stats.base_s,
        token_s=stats.token_s,
    )


def as_numbers(state: ReplicaState, waiting: float) -> dict[str, float]:
    """The same for `record_autoscaling_stats`, which knows numbers by name. waiting: its share of such requests."""
    return {key: value for key, value in asdict(state).items() if key != "name"} | {WAITING: waiting}


TOLD = frozenset(as_numbers(ReplicaState(""), 0.0))
"""Serve counts other things besides."""


class ServePolicy:
    """Ray Serve's autoscaling policy of one pool, from what its replicas told last.

    Serve calls it many times a second, and starts a first replica by itself when a handle waits for one. The bounds and
    delays are this side's own, so that they are the same in virtual time.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """settings: an AutoscalingSettings as plain data."""
        self._autoscaler = AutoscalingSettings.model_validate(settings).autoscaler()
        self._decided_s = float("-inf")
        self._decision = 0

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Replicas that there are to be, and no state: it is here."""
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
