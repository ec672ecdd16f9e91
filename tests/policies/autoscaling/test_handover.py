"""Hand-over of waiting sessions: to those with room, no more than they have, from the longest queues."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.autoscaling.handover import ReplicaQueue, handed_over, room

QUEUES = st.dictionaries(
    st.sampled_from("abcd"), st.builds(ReplicaQueue, st.integers(0, 20), st.integers(0, 20))
)


def test_a_new_replica_gets_what_waits_at_the_others() -> None:
    queues = {"old": ReplicaQueue(6, 0), "older": ReplicaQueue(9, 0), "new": ReplicaQueue(0, 7)}
    assert handed_over(queues) == {"old": 2, "older": 5}


def test_sessions_that_are_about_to_be_let_in_stay() -> None:
    assert handed_over({"a": ReplicaQueue(2, 3), "b": ReplicaQueue(0, 8)}) == {}


@given(QUEUES)
def test_nobody_gives_what_the_others_have_no_room_for(queues: dict[str, ReplicaQueue]) -> None:
    given_away = handed_over(queues)
    assert all(
        0 < count <= queues[name].waiting and not queues[name].room for name, count in given_away.items()
    )
    total = sum(given_away.values())
    waiting = sum(queue.waiting for queue in queues.values() if not queue.room)
    assert total == min(waiting, sum(queue.room for queue in queues.values()))


def test_room_is_places_and_memory() -> None:
    assert room(8, 3, 0, 100, 100) == 5
    assert room(8, 12, 4, 100, 100) == 0
    assert room(8, 3, 0, 40, 100) == 2, "three hold 60 blocks"
    assert room(8, 0, 0, 100, 100) == 8
    assert room(8, 1, 0, 40, 100) == 0, "one holds 60 blocks, and there are 40"
    assert room(8, 2, 2, 40, 100) == 6, "what none of them holds says nothing"
