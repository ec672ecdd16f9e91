"""Queue scaling, and foresight."""

from __future__ import annotations

import pytest

from tandem.benchmarks.autoscaling.rivals import Oracle, QueueScaling
from tandem.policies.autoscaling import PoolState, ReplicaState
from tandem.simulator.workload import Request


def pool(now_s: float, target: int, backlog: float = 0.0, sessions: float = 0.0) -> PoolState:
    return PoolState(now_s, target, (ReplicaState("a", sessions=sessions, backlog=backlog),))


def test_a_queue_is_divided_by_its_target() -> None:
    assert QueueScaling(100.0).desired(pool(0.0, 1, backlog=350.0)) == 4
    assert QueueScaling(10.0, metric="running").desired(pool(0.0, 1, sessions=35.0)) == 4


def test_a_tenth_is_no_difference() -> None:
    assert QueueScaling(100.0).desired(pool(0.0, 4, backlog=430.0)) == 4
    assert QueueScaling(100.0).desired(pool(0.0, 4, backlog=450.0)) == 5


def test_fewer_are_the_most_of_the_latest_minutes() -> None:
    policy = QueueScaling(100.0, stable_s=60.0)
    assert policy.desired(pool(0.0, 1, backlog=500.0)) == 5
    assert policy.desired(pool(7.0, 5)) == 5, "not looked at in between"
    assert policy.desired(pool(15.0, 5)) == 5
    assert policy.desired(pool(45.0, 5, backlog=200.0)) == 5
    assert policy.desired(pool(75.0, 5)) == 2


def test_an_oracle_has_replicas_when_a_burst_comes() -> None:
    """100 requests of 0.5 s each at second 200, 5 replicas' work in 10 seconds: they start 35 s before."""
    requests = [Request(200.0, 500, 100)] * 100
    oracle = Oracle(requests, token_s=6e-4, decode_s=2e-3, start_s=30.0, load=1.0, window_s=10.0, hold_s=5.0)
    wanted = {second: oracle.desired(pool(float(second), 1)) for second in (100, 150, 170, 200, 205, 215)}
    assert wanted[100] == wanted[150] == 1.0
    assert wanted[170] == wanted[200] == wanted[205] == pytest.approx(5.0)
    assert wanted[215] == 1.0
