"""Replica routing: which replica of a pool takes a new session."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from tandem.policies.base import Registry


class RoutingPolicy(Protocol):
    def choose(self, queue_depths: Sequence[int]) -> int:
        """Return the index of the replica for a new session, given each replica's queue depth (sessions)."""
        ...


routing: Registry[RoutingPolicy] = Registry("routing")


@routing.register("random")
class RandomReplica:
    """Picks a replica uniformly at random.

    seed: of the random numbers.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, queue_depths: Sequence[int]) -> int:
        return int(self._random.random() * len(queue_depths))


@routing.register("round_robin")
class RoundRobin:
    """Picks each replica in turn."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, queue_depths: Sequence[int]) -> int:
        index = self._next % len(queue_depths)
        self._next = index + 1
        return index


@routing.register("jsq")
class JoinShortestQueue:
    """Picks the replica with the fewest sessions, the first among equals."""

    def choose(self, queue_depths: Sequence[int]) -> int:
        return queue_depths.index(min(queue_depths))
