from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.routing import JoinShortestQueue, RandomReplica, RoundRobin, routing


@pytest.mark.parametrize("name", list(routing))
@given(states=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=9), max_size=20))
def test_contract(name: str, states: list[list[int]]) -> None:
    """An index in range, also while replicas come and go."""
    policy = routing.create(name)
    for depths in states:
        assert policy.choose(depths) in range(len(depths))


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
