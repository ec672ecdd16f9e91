"""Routing: which replica of a pool takes a new session."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from tandem.policies.base import Registry


class RoutingPolicy(Protocol):
    def choose(self, queue_depths: Sequence[int]) -> int:
        """Index of the replica for a new session, given each replica's queue depth (sessions)."""
        ...


routing: Registry[RoutingPolicy] = Registry("routing")


@routing.register("random")
class RandomReplica:
    """Any replica, each as likely as the others; load plays no part.

    seed: of the draws.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, queue_depths: Sequence[int]) -> int:
        return int(self._random.random() * len(queue_depths))


@routing.register("round_robin")
class RoundRobin:
    """Each replica in turn."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, queue_depths: Sequence[int]) -> int:
        index = self._next % len(queue_depths)
        self._next = index + 1
        return index


@routing.register("jsq")
class JoinShortestQueue:
    """The replica with the fewest sessions; among equals the first."""

    def choose(self, queue_depths: Sequence[int]) -> int:
        return queue_depths.index(min(queue_depths))
