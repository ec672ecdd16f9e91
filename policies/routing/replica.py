"""Replica routing: which replica of a pool takes a new session."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple, Protocol

from tandem.policies.base import Registry


class ReplicaView(NamedTuple):
    """A replica as a policy sees it.

    sessions: its sessions, waiting ones included.
    usd: cost of the request there if its answer is as long as it may be, dollars.
    first_token_s: usual time to its first token, seconds; 0 if unknown.
    """

    sessions: int
    usd: float = 0.0
    first_token_s: float = 0.0


class RoutingPolicy(Protocol):
    def choose(self, replicas: Sequence[ReplicaView]) -> int:
        """Return the index of the replica for a new session."""
        ...


routing: Registry[RoutingPolicy] = Registry("routing")


@routing.register("random")
class RandomReplica:
    """Picks a replica uniformly at random.

    seed: of the random numbers.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, replicas: Sequence[ReplicaView]) -> int:
        return int(self._random.random() * len(replicas))


@routing.register("round_robin")
class RoundRobin:
    """Picks each replica in turn."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, replicas: Sequence[ReplicaView]) -> int:
        index = self._next % len(replicas)
        self._next = index + 1
        return index


@routing.register("jsq")
class JoinShortestQueue:
    """Picks the replica with the fewest sessions, the first among equals."""

    def choose(self, replicas: Sequence[ReplicaView]) -> int:
        depths = [replica.sessions for replica in replicas]
        return depths.index(min(depths))


@routing.register("cheapest")
class Cheapest:
    """Picks the replica where the request costs least, of services with prices of their own; the one with the fewest
    sessions among equals.

    usd_per_s: dollars that a second less until the first token is worth.
    """

    def __init__(self, usd_per_s: float = 0.0) -> None:
        if usd_per_s < 0:
            raise ValueError(f"usd_per_s must not be below 0 dollars, not {usd_per_s}")
        self._usd_per_s = usd_per_s

    def choose(self, replicas: Sequence[ReplicaView]) -> int:
        costs = [(each.usd + self._usd_per_s * each.first_token_s, each.sessions) for each in replicas]
        return costs.index(min(costs))
