"""Ray Serve's calls of a pool's autoscaling policy, and its numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
from ray.serve.config import AutoscalingPolicy

from tandem.deployments.pools.autoscaling import (
    EVERY_S,
    AutoscalingSettings,
    as_numbers,
    replica_state,
)
from tandem.deployments.pools.serve_policy import ServePolicy
from tandem.engine.base import EngineStats
from tandem.policies.autoscaling import PoolState
from tandem.policies.autoscaling.forecast import Forecast
from tandem.policies.scheduling.outstanding import Outstanding

BUSY = EngineStats(
    sessions=12,
    blocks_total=100,
    blocks_free=40,
    block_size=16,
    outstanding=Outstanding(backlog=300, reading=60.0, starving=2, awaited=64),
    base_s=0.01,
    token_s=0.001,
    tokens_prefilled=1000,
    tokens_generated=500,
)
DEPLOYMENT = DeploymentID(name="Verifier", app_name="app")
SETTINGS = {
    "min_replicas": 0,
    "max_replicas": 4,
    "downscale_delay_s": 0.0,
    "to_zero_delay_s": 0.0,
    "policy": {"name": "ongoing_requests", "parameters": {"target": 8, "look_back_s": 1}},
}


def context(target: int, told: dict[str, dict[str, float]], now_s: float) -> Any:
    """Return Serve's argument to the policy: each replica's numbers, the older ones first."""
    ids = {name: ReplicaID(name, DEPLOYMENT) for name in told}
    metrics: dict[str, dict[ReplicaID, list[TimeStampedValue]]] = {"running_requests": {}}
    for name, numbers in told.items():
        metrics["running_requests"][ids[name]] = [TimeStampedValue(now_s, 99.0)]
        for key, value in numbers.items():
            series = [TimeStampedValue(now_s - 1, 12345.0), TimeStampedValue(now_s, value)]
            metrics.setdefault(key, {})[ids[name]] = series
    return SimpleNamespace(
        current_time=now_s,
        target_num_replicas=target,
        raw_metrics=metrics,
    )


def test_a_replica_tells_of_its_work() -> None:
    state = replica_state("a", BUSY, places=32)
    assert (state.sessions, state.backlog, state.reading, state.starving) == (12, 300, 60.0, 2)
    assert (state.kv_wanted, state.kv_capacity) == (60 * 16 + 64, 1600)
    assert (state.places, state.prefilled, state.generated) == (32, 1000, 500)


def test_numbers_are_all_that_serve_carries() -> None:
    numbers = as_numbers(replica_state("a", BUSY, places=32), waiting=3.0)
    assert all(isinstance(value, (int, float)) for value in numbers.values())
    assert numbers["waiting"] == 3.0


def test_serve_hears_what_the_policy_says_of_what_was_told_last() -> None:
    numbers = as_numbers(replica_state("", BUSY, places=32), waiting=2.0)
    policy = ServePolicy(SETTINGS)
    assert policy(context(2, {"a": numbers, "b": numbers}, 10.0)) == (4, {}), "(12 + 12 + 2 + 2) / 8"


def test_the_policy_outlives_how_serve_passes_it_on() -> None:
    """Serve pickles its whole module by value, for its controller to load."""
    path = f"{ServePolicy.__module__}:{ServePolicy.__qualname__}"
    passed_on = AutoscalingPolicy(policy_function=path, policy_kwargs={"settings": SETTINGS})
    assert passed_on.get_policy()(settings=SETTINGS)(context(3, {}, 10.0))[0] == 3


def test_serve_may_ask_all_the_time() -> None:
    """Between two decisions it hears the last one, unless it has done otherwise meanwhile."""
    busy = as_numbers(replica_state("", BUSY, places=32), waiting=0.0)
    policy = ServePolicy(SETTINGS)
    assert policy(context(2, {"a": busy}, 10.0))[0] == 2
    assert policy(context(2, {}, 10.0 + EVERY_S / 2))[0] == 2
    assert policy(context(1, {"a": busy}, 10.0 + EVERY_S / 2))[0] == 2


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    busy = as_numbers(replica_state("", BUSY, places=32), waiting=0.0)
    policy = ServePolicy(SETTINGS)
    assert policy(context(2, {"a": busy}, 5000.0))[0] == 2
    assert policy(context(2, {"a": busy, "b": busy}, 10.0))[0] == 3


def test_silence_changes_nothing() -> None:
    assert ServePolicy(SETTINGS)(context(3, {}, 10.0))[0] == 3


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({}, "max_replicas"),
        ({"max_replicas": 1, "min_replicas": 2}, "2 is above 1"),
        ({"max_replicas": 2, "policy": {"name": "wrong"}}, "ongoing_requests, work"),
        ({"max_replicas": 2, "policy": {"name": "work", "parameters": {"load": 2}}}, "load must be above 0"),
        ({"max_replicas": 2, "downscale_delay_s": -1}, "downscale_delay_s"),
    ],
)
def test_settings_that_make_no_sense(said: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        AutoscalingSettings.model_validate(said)


def test_the_policy_is_told_how_long_a_start_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve does not say; it is seen from when a replica was asked for, and when it first reports."""
    told: list[float | None] = []
    desired = Forecast.desired

    def noted(self: Forecast, pool: PoolState) -> float:
        told.append(pool.start_s)
        return desired(self, pool)

    monkeypatch.setattr(Forecast, "desired", noted)
    busy = as_numbers(replica_state("", BUSY, places=32), waiting=0.0)
    policy = ServePolicy(SETTINGS | {"policy": {"name": "forecast"}})
    for second in range(60):
        policy(context(2, {"a": busy} if second < 42 else {"a": busy, "b": busy}, 100.0 + second))
    assert told[0] is None
    assert told[-1] == pytest.approx(42.0)
