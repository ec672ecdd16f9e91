"""Hand-over: which replicas give waiting sessions away to others that have room for them.

A session waits in the queue of the replica that it was assigned to. Where another one comes up, or comes to its end
sooner, it would go on waiting there although it need not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ReplicaQueue(NamedTuple):
    """A replica's sessions.

    waiting: those without a place.
    room: how many more would find one.
    """

    waiting: int
    room: int


def room(places: int, sessions: int, waiting: int, blocks_free: int, blocks_total: int) -> int:
    """Return how many more sessions would find a place at a replica, if they take as much KV cache as those that have
    one. places: most sessions in a step; sessions: open ones, waiting ones included."""
    held, holders = blocks_total - blocks_free, sessions - waiting
    most = max(0, places - sessions)
    return most if held <= 0 or holders <= 0 else min(most, blocks_free * holders // held)


def handed_over(queues: Mapping[str, ReplicaQueue]) -> dict[str, int]:
    """Return how many waiting sessions each replica without room gives away, those that give none left out: as many as
    the others have room for, from the longest queues first."""
    waiting = {name: queue.waiting for name, queue in queues.items() if queue.waiting and not queue.room}
    given = dict.fromkeys(waiting, 0)
    for _ in range(min(sum(queue.room for queue in queues.values()), sum(waiting.values()))):
        longest = max(waiting, key=waiting.__getitem__)
        waiting[longest] -= 1
        given[longest] += 1
    return {name: count for name, count in given.items() if count}
