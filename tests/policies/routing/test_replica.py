from __future__ import annotations

from tandem.policies.routing.replica import JoinShortestQueue, RandomReplica, RoundRobin


def test_round_robin_takes_each_in_turn() -> None:
    policy = RoundRobin()
    assert [policy.choose([9, 0, 0]) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_join_shortest_queue() -> None:
    assert JoinShortestQueue().choose([3, 1, 2, 1]) == 1


def test_random_repeats_with_its_seed_and_takes_all() -> None:
    first, second = (
        [policy.choose([0] * 5) for _ in range(200)] for policy in (RandomReplica(3), RandomReplica(3))
    )
    assert first == second
    assert set(first) == set(range(5))
