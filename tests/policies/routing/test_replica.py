from __future__ import annotations

import pytest

from tandem.policies.routing.replica import (
    Cheapest,
    JoinShortestQueue,
    RandomReplica,
    ReplicaView,
    RoundRobin,
)


def depths(*sessions: int) -> list[ReplicaView]:
    return [ReplicaView(n) for n in sessions]


def test_round_robin_takes_each_in_turn() -> None:
    policy = RoundRobin()
    assert [policy.choose(depths(9, 0, 0)) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_join_shortest_queue() -> None:
    assert JoinShortestQueue().choose(depths(3, 1, 2, 1)) == 1


def test_random_repeats_with_its_seed_and_takes_all() -> None:
    first, second = (
        [policy.choose(depths(0, 0, 0, 0, 0)) for _ in range(200)]
        for policy in (RandomReplica(3), RandomReplica(3))
    )
    assert first == second
    assert set(first) == set(range(5))


@pytest.mark.parametrize(
    ("usd_per_s", "chosen"),
    [(0.0, 1), (0.001, 1), (0.003, 0)],  # 0.002 dollars more, a second earlier
)
def test_the_cheapest_is_taken_unless_its_wait_costs_more(usd_per_s: float, chosen: int) -> None:
    replicas = [ReplicaView(9, 0.004, 0.5), ReplicaView(9, 0.002, 1.5), ReplicaView(9, 0.006, 0.5)]
    assert Cheapest(usd_per_s).choose(replicas) == chosen


def test_of_equally_cheap_ones_the_less_busy_is_taken() -> None:
    assert Cheapest().choose([ReplicaView(0, 0.2), ReplicaView(3, 0.1), ReplicaView(2, 0.1)]) == 2
    with pytest.raises(ValueError, match="usd_per_s"):
        Cheapest(-1.0)


def test_unless_it_is_said_a_second_is_worth_nothing() -> None:
    assert Cheapest().choose([ReplicaView(9, 0.004, 0.0), ReplicaView(9, 0.002, 1e6)]) == 1


def test_a_replica_of_which_nothing_is_known_costs_nothing_and_takes_no_time() -> None:
    assert ReplicaView(3) == (3, 0.0, 0.0)
