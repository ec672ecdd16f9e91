"""Bounds and delays: what Ray Serve does, and nothing at random."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve.autoscaling_policy import _apply_delay_logic
from ray.serve.config import AutoscalingConfig

from tandem.policies.autoscaling import Autoscaler, Bounds, PoolState, ReplicaState
from tandem.policies.autoscaling.base import Starts

ONE = (ReplicaState("a"),)


class Wishes:
    """A policy that wants what it is told to."""

    def __init__(self) -> None:
        self.next = 0.0

    def desired(self, pool: PoolState) -> float:
        return self.next


@given(
    least=st.integers(0, 3),
    more=st.integers(0, 5),
    delays=st.tuples(*[st.sampled_from([0.0, 1.0, 3.0])] * 3),
    wishes=st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.25, 1.0, 4.0])), max_size=40),
)
def test_a_pool_has_the_size_that_ray_serve_would_give_it(
    least: int, more: int, delays: tuple[float, float, float], wishes: list[tuple[int, float]]
) -> None:
    """Given the same wishes at the same times: bounds, and delays up, down and to nothing."""
    most = max(1, least + more)
    upscale_s, downscale_s, to_zero_s = delays
    policy = Wishes()
    scaler = Autoscaler(policy, Bounds(least, most, upscale_s, downscale_s, to_zero_s))
    config = AutoscalingConfig(
        min_replicas=least,
        max_replicas=most,
        upscale_delay_s=upscale_s,
        downscale_delay_s=downscale_s,
        downscale_to_zero_delay_s=to_zero_s,
    )
    size, state, now_s = max(1, least), dict[str, Any](), 100.0
    for wanted, later_s in wishes:
        now_s += later_s
        policy.next = wanted
        serve, state = _apply_delay_logic(wanted, size, config, state, _now=now_s)
        bounded = min(max(serve, least), most)
        assert scaler.decide(PoolState(now_s, size, ONE)) == bounded
        size = bounded
        if not size:
            return  # Serve starts a first replica without asking


def test_parts_of_a_replica_are_whole_ones() -> None:
    policy = Wishes()
    scaler = Autoscaler(policy, Bounds(1, 9))
    policy.next = 2.01
    assert scaler.decide(PoolState(0.0, 1, ONE)) == 3
    policy.next = 2 + 1e-12  # what rounding leaves is none
    assert Autoscaler(policy, Bounds(1, 9)).decide(PoolState(0.0, 1, ONE)) == 2


def test_the_first_replica_comes_at_once() -> None:
    scaler = Autoscaler(Wishes(), Bounds(0, 9, upscale_delay_s=60.0))
    assert scaler.decide(PoolState(0.0, 0)) == 0
    assert scaler.decide(PoolState(1.0, 0, waiting=3.0)) == 1


def test_a_wish_ends_with_those_who_had_it() -> None:
    """A pool that was idle, and was then needed again, is as new."""
    policy = Wishes()
    scaler = Autoscaler(policy, Bounds(0, 9, to_zero_delay_s=100.0))
    assert scaler.decide(PoolState(0.0, 1, ONE)) == 1
    assert scaler.decide(PoolState(90.0, 1)) == 1
    assert scaler.decide(PoolState(150.0, 1, ONE)) == 1


def test_replicas_that_say_nothing_are_left_alone() -> None:
    """Silent replicas are starting, or their numbers are late: their load is unknown."""
    scaler = Autoscaler(Wishes(), Bounds(0, 9, downscale_delay_s=0.0))
    assert scaler.decide(PoolState(0.0, 4)) == 4


def test_a_start_takes_from_the_decision_to_the_first_report() -> None:
    starts = Starts()
    starts.see(0.0, 1, 1)
    assert starts.seconds is None
    starts.see(10.0, 3, 1)
    starts.see(25.0, 2, 1)  # one is no longer wanted
    starts.see(40.0, 2, 2)
    assert starts.seconds == 30.0
    starts.see(50.0, 1, 1)
    starts.see(60.0, 2, 1)
    starts.see(100.0, 2, 2)
    assert starts.seconds == pytest.approx(33.0)


def test_a_policy_is_told_how_long_starts_take() -> None:
    class Curious(Wishes):
        told: float | None = None

        def desired(self, pool: PoolState) -> float:
            self.told = pool.start_s
            return self.next

    policy = Curious()
    scaler = Autoscaler(policy, Bounds(1, 9))
    policy.next = 2.0
    assert scaler.decide(PoolState(0.0, 1, ONE)) == 2
    assert policy.told is None
    scaler.decide(PoolState(1.0, 2, ONE))
    scaler.decide(PoolState(21.0, 2, (*ONE, ReplicaState("b"))))
    assert policy.told == 20.0


def test_a_pool_is_one_replica_unless_its_bounds_say_otherwise() -> None:
    policy = Wishes()
    policy.next = 5.0
    assert Autoscaler(policy, Bounds()).decide(PoolState(0.0, 1, ONE)) == 1
    assert (Bounds().min_replicas, Bounds().max_replicas, Bounds().upscale_delay_s) == (1, 1, 0.0)


def test_a_replica_that_has_told_nothing_works_on_nothing() -> None:
    told = ReplicaState("a")
    assert (told.sessions, told.backlog, told.reading, told.starving, told.kv_wanted) == (0.0,) * 5
    assert (told.prefilled, told.generated, told.base_s, told.token_s) == (0.0,) * 4
    assert (told.kv_capacity, told.places) == (1.0, 1.0), "nothing is divided by nothing"


def test_the_first_replica_that_reports_has_taken_its_start() -> None:
    starts = Starts()
    starts.see(0.0, 1, 0)
    starts.see(20.0, 1, 1)
    assert starts.seconds == 20.0


def decided(wishes: list[tuple[float, float]], target: int, **delays: float) -> list[int]:
    """Return the decisions on a pool of `target` replicas, with wishes by time."""
    policy, made = Wishes(), list[int]()
    scaler = Autoscaler(policy, Bounds(0, 9, **delays))
    for now_s, policy.next in wishes:
        made.append(scaler.decide(PoolState(now_s, target, ONE)))
    return made


def test_each_direction_has_its_delay_and_the_last_replica_its_own() -> None:
    delays = {"upscale_delay_s": 5.0, "downscale_delay_s": 20.0, "to_zero_delay_s": 50.0}
    assert decided([(0, 4), (4.9, 4), (5, 5)], 3, **delays) == [3, 3, 5]
    assert decided([(0, 2), (19.9, 0), (20, 0)], 3, **delays) == [3, 3, 1], "not the last one with the others"
    assert decided([(0, 0), (20, 0), (49.9, 0), (50, 0)], 1, **delays) == [1, 1, 1, 0]


def test_a_delay_begins_with_the_first_wish_of_its_direction() -> None:
    wishes = [(0, 3), (100, 2), (119, 2), (120, 2)]
    assert decided(wishes, 3, downscale_delay_s=20.0) == [3, 3, 3, 2], "nothing was wished for before"
    assert decided([(0, 2), (10, 4), (15, 2), (34, 2), (35, 2)], 3, downscale_delay_s=20.0, upscale_delay_s=9.0) == [
        3, 3, 3, 3, 2,
    ]  # fmt: skip
