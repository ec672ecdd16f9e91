"""Settings of a pool that grows and shrinks, and what its replicas report for it."""

from __future__ import annotations

from dataclasses import asdict

from pydantic import Field, model_validator

from tandem.engine.base import EngineStats
from tandem.engine.config import PolicyChoice, Strict
from tandem.policies.autoscaling import (
    Autoscaler,
    AutoscalingPolicy,
    Bounds,
    ReplicaState,
    autoscaling,
)

EVERY_S = 1.0
"""Interval of replicas' reports and of decisions on a pool's size."""
WAITING = "waiting"
"""Name of a replica's share of the requests that wait for a replica."""


class AutoscalingChoice(PolicyChoice[AutoscalingPolicy]):
    """An autoscaling policy."""

    family = autoscaling


class AutoscalingSettings(Strict):
    """A pool that grows and shrinks with its work.

    min_replicas, max_replicas: bounds of the pool; with 0 it may be empty without requests.
    policy: policy that decides the number of replicas.
    upscale_delay_s, downscale_delay_s, to_zero_delay_s: how long the policy must ask for more, fewer or no replicas
        before it is followed.
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
        """Return a new autoscaler, for one pool."""
        bounds = Bounds(
            self.min_replicas,
            self.max_replicas,
            self.upscale_delay_s,
            self.downscale_delay_s,
            self.to_zero_delay_s,
        )
        return Autoscaler(self.policy.create(), bounds)


def replica_state(name: str, stats: EngineStats, places: int) -> ReplicaState:
    """Return a replica's state. places: most sessions in a step."""
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
    """Return the state as numbers by name, for `record_autoscaling_stats`. waiting: its share of the waiting
    requests."""
    return {key: value for key, value in asdict(state).items() if key != "name"} | {WAITING: waiting}


TOLD = frozenset(as_numbers(ReplicaState(""), 0.0))
"""Serve counts other things besides."""
