"""Ray Serve's own policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve.autoscaling_policy import replica_queue_length_autoscaling_policy
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from tandem.policies.autoscaling import PoolState, ReplicaState, autoscaling


def context(requests: float, replicas: int, target: float) -> AutoscalingContext:
    """Return Serve's argument, of which the policy reads requests, replicas and configuration."""
    return AutoscalingContext(
        deployment_id=None,
        deployment_name="",
        app_name=None,
        current_num_replicas=replicas,
        target_num_replicas=replicas,
        running_replicas=[],
        total_num_requests=requests,
        total_queued_requests=0.0,
        aggregated_metrics=None,
        raw_metrics=None,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=100,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=0.0,
        config=AutoscalingConfig(max_replicas=100, target_ongoing_requests=target),
    )


@given(
    sessions=st.lists(st.integers(0, 200), min_size=1, max_size=8),
    waiting=st.integers(0, 50),
    target=st.floats(0.5, 64),
)
def test_it_wants_what_ray_serve_wants(sessions: list[int], waiting: int, target: float) -> None:
    pool = PoolState(
        0.0, len(sessions), tuple(ReplicaState(str(i), sessions=n) for i, n in enumerate(sessions)), waiting
    )
    policy = autoscaling.create("ongoing_requests", target=target)
    wanted, _ = replica_queue_length_autoscaling_policy(
        context(sum(sessions) + waiting, len(sessions), target)
    )
    assert policy.desired(pool) == pytest.approx(wanted)


def test_it_looks_back() -> None:
    policy = autoscaling.create("ongoing_requests", target=1, look_back_s=10)
    for second, sessions in ((0, 8), (1, 4), (11, 0)):
        wanted = policy.desired(PoolState(second, 1, (ReplicaState("a", sessions=sessions),)))
    assert wanted == pytest.approx(2.0), "4 and 0: the 8 are over"


def test_no_target_is_none() -> None:
    with pytest.raises(ValueError, match="above 0 sessions"):
        autoscaling.create("ongoing_requests", target=0)


def test_two_sessions_a_replica_over_half_a_minute_unless_told_otherwise() -> None:
    policy = autoscaling.create("ongoing_requests")
    for second, sessions in ((0, 8), (5, 4)):
        assert policy.desired(PoolState(second, 1, (ReplicaState("a", sessions=sessions),)))
    assert policy.desired(PoolState(30, 1, (ReplicaState("a", sessions=0),))) == pytest.approx(12 / 3 / 2)
    assert policy.desired(PoolState(31, 1, (ReplicaState("a", sessions=2),))) == pytest.approx(6 / 3 / 2)
