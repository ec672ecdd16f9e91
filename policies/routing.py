"""Routing: which replica of a pool takes a new session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from policies.base import Registry


class RoutingPolicy(Protocol):
    def choose(self, queue_depths: Sequence[int]) -> int:
        """Index of the replica for a new session, given each replica's queue depth (sessions)."""
        ...


routing: Registry[RoutingPolicy] = Registry("routing")


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
        return min(range(len(queue_depths)), key=queue_depths.__getitem__)
