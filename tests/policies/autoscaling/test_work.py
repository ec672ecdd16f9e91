"""Replicas for the work that there is."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import pytest

from tandem.policies.autoscaling import PoolState, ReplicaState, autoscaling
from tandem.policies.autoscaling.work import Mean, Rate

CALM = ReplicaState(
    "a", sessions=8, reading=80, kv_wanted=800, kv_capacity=10_000, places=50, base_s=0.02, token_s=1e-4
)


def desired(policy: object, *seconds: ReplicaState, waiting: float = 0.0) -> float:
    """Return the last decision, after one replica reports these states, second by second."""
    for second, state in enumerate(seconds):
        wanted = policy.desired(PoolState(float(second), 1, (state,), waiting))  # type: ignore[attr-defined]
    return float(wanted)


def steady(
    prefill: float = 0.0, decode: float = 0.0, seconds: int = 300, **said: float
) -> list[ReplicaState]:
    """Return states with constant rates, in tokens a second."""
    return [
        replace(CALM, prefilled=second * prefill, generated=second * decode, **said)
        for second in range(seconds)
    ]


def test_the_work_of_a_second_is_what_its_steps_take() -> None:
    """5,000 prompt tokens of 0.1 ms, and 1,000 of output in steps of 50 sessions, of 0.5 ms each: 1 second."""
    policy = autoscaling.create("work", load=0.25)
    assert desired(policy, *steady(5000, 1000)) == pytest.approx(4.0, rel=0.02)


def test_outputs_have_to_come_as_fast_as_they_are_read() -> None:
    policy = autoscaling.create("work", load=0.5)
    slow = desired(policy, *steady(decode=1000, reading=4000))
    assert slow == pytest.approx(4000 * 0.0005 / 0.5, rel=0.02)


def test_memory_that_is_wanted_is_memory() -> None:
    assert desired(autoscaling.create("work", memory=0.8), *steady(kv_wanted=24_000)) == pytest.approx(3.0)


def test_a_backlog_is_to_be_gone_soon() -> None:
    """100,000 tokens of 0.1 ms are 10 seconds' work, in 2 seconds that of 5 replicas."""
    policy = autoscaling.create("work", clear_s=2.0, window_s=4.0)
    assert desired(policy, *steady(backlog=100_000, reading=0)) == pytest.approx(5.0, rel=0.02)
    more = autoscaling.create("work", clear_s=2.0, window_s=4.0)
    assert desired(more, *steady(backlog=100_000, reading=0), waiting=8) == pytest.approx(10.0, rel=0.02)


def test_readers_that_wait_want_another_replica() -> None:
    assert desired(autoscaling.create("work"), *steady(starving=1)) == 1.0, "few are patient"
    assert desired(autoscaling.create("work"), *steady(starving=4)) == pytest.approx(1.5)


def test_replicas_without_sessions_are_no_reason_for_more() -> None:
    """Waiting sessions do not move to new replicas: with each of these the pool would want another share of all."""
    waits, idle = replace(CALM, starving=8), replace(CALM, name="b", sessions=0, reading=0.0)
    policy = autoscaling.create("work")
    for second in range(60):
        wanted = policy.desired(PoolState(float(second), 2, (waits, idle)))
    assert wanted == pytest.approx(2.0)


def test_nobody_needs_two_replicas() -> None:
    lone = replace(CALM, sessions=1, backlog=1_000_000)
    assert desired(autoscaling.create("work"), *[lone] * 60) == 1.0


def test_replicas_that_have_not_worked_know_nothing() -> None:
    busy = [
        tuple(
            replace(CALM, name=name, prefilled=second * 5000.0, sessions=50, base_s=0.0, token_s=2e-4)
            for name in "ab"
        )
        for second in range(300)
    ]
    new = ReplicaState("c", kv_capacity=10_000, base_s=1e-9, token_s=1e-9)
    alone, beside = autoscaling.create("work"), autoscaling.create("work")
    for second, replicas in enumerate(busy):
        wanted = alone.desired(PoolState(float(second), 2, replicas))
        wanted_beside = beside.desired(PoolState(float(second), 3, (*replicas, new)))
    assert wanted == pytest.approx(wanted_beside) == pytest.approx(4.0, rel=0.02)


def test_an_hour_in_which_the_pool_was_empty_does_not_count() -> None:
    policy = autoscaling.create("work", load=0.5, window_s=10.0)
    assert desired(policy, *steady(20_000, seconds=60, reading=0)) == pytest.approx(4.0, rel=0.02)
    for second in range(60):
        again = replace(CALM, name="b", prefilled=second * 20_000.0, reading=0.0)
        wanted = policy.desired(PoolState(4000.0 + second, 1, (again,)))
    assert wanted == pytest.approx(4.0, rel=0.02)


def test_the_first_second_is_no_rate() -> None:
    """Eight prompts of 4,000 tokens are 3.2 seconds' work, not a load that goes on."""
    policy = autoscaling.create("work", load=0.5, window_s=60.0, clear_s=20.0)
    first, second = replace(CALM, prefilled=1.0), replace(CALM, prefilled=32_000.0)
    assert policy.desired(PoolState(0.0, 1, (first,))) == 1.0
    assert policy.desired(PoolState(1.0, 1, (second,))) < 1.5


def test_the_shortest_time_is_no_division_by_zero() -> None:
    policy = autoscaling.create("work")
    assert policy.desired(PoolState(0.0, 1, (CALM,))) == 1.0
    assert policy.desired(PoolState(5e-324, 1, (replace(CALM, generated=1.0),))) == 1.0


def test_a_burst_passes() -> None:
    """Finished work does not justify replicas for the present load."""
    policy = autoscaling.create("work", window_s=10.0)
    assert desired(policy, *steady(20_000, seconds=60)) > 2
    calm = [replace(CALM, prefilled=60 * 20_000, reading=0.0)] * 100
    later = [policy.desired(PoolState(60.0 + i, 1, (state,))) for i, state in enumerate(calm)]
    assert later[-1] == 1.0
    assert later == sorted(later, reverse=True)


def test_nothing_to_do_is_nothing() -> None:
    policy = autoscaling.create("work", window_s=10.0)
    idle = replace(CALM, sessions=0, reading=0.0, kv_wanted=0.0)
    assert desired(policy, *[idle] * 3) == 0.0
    assert desired(policy, idle, waiting=1.0) == 1.0


def test_a_replica_that_goes_takes_nothing_along() -> None:
    """Counters of a removed replica vanish, and a new one brings none from before."""
    policy = autoscaling.create("work", load=0.5)
    other = replace(CALM, name="b", prefilled=1e9)
    before = policy.desired(PoolState(0.0, 2, (CALM, other)))
    after = policy.desired(PoolState(1.0, 1, (CALM,)))
    assert before == after == 1.0


@pytest.mark.parametrize(
    "wrong",
    [{"load": 0.0}, {"load": 1.5}, {"memory": 0}, {"patience": 2}, {"clear_s": 0.0}, {"window_s": -1.0}],
)
def test_parameters_make_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        autoscaling.create("work", **wrong)


def test_a_rate_by_hand() -> None:
    """Ten more in a second weigh (1 − e^{−1/8})·8 s, and are divided by at least a quarter of 8 s."""
    rate, new_s = Rate(8.0), 8 * (1 - exp(-1 / 8))
    assert rate.of(0.0, {"a": 5.0}) == 0.0, "what came before is not known"
    assert rate.of(1.0, {"a": 15.0}) == pytest.approx(10 * new_s / 2)
    fade = exp(-1 / 8)
    assert rate.of(1.0, {"a": 99.0}) == pytest.approx(10 * new_s / 2), "no time has passed"
    weight = new_s * fade + new_s
    assert rate.of(2.0, {"a": 35.0}) == pytest.approx((10 * new_s * fade + 20 * new_s) / max(weight, 2.0))
    assert rate.of(3.0, {"b": 7.0}) == 0.0, "the pool has been empty"


def test_a_mean_by_hand() -> None:
    mean = Mean(4.0)
    assert mean.of(0.0, 3.0) == 3.0
    assert mean.of(2.0, 5.0) == pytest.approx(3 + (1 - exp(-0.5)) * 2)


def test_readers_that_wait_count_over_a_quarter_of_the_window() -> None:
    """All eight sessions wait for 15 of 60 s: 1 − 1/e of them, on average."""
    policy = autoscaling.create("work", patience=0.2, window_s=60.0)
    states = [*steady(seconds=60), *steady(seconds=16, starving=8)]
    states = [replace(state, prefilled=0.0, generated=0.0) for state in states]
    assert desired(policy, *states) == pytest.approx(1 + 1 - exp(-16 / 15), rel=0.01)


def test_half_a_replica_and_twenty_seconds_unless_it_is_said() -> None:
    assert desired(autoscaling.create("work"), *steady(5000, 1000)) == pytest.approx(2.0, rel=0.02)
    backlog = steady(backlog=400_000, reading=0, sessions=9)
    assert desired(autoscaling.create("work"), *backlog) == pytest.approx(2.0, rel=0.02)
