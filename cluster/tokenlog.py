"""The token log: what a request has said so far, and who said it.

A request is its prompt plus this append-only log. Any endpoint can continue any request from the two,
which is what failover, hand-over and speculation rest on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class Origin(StrEnum):
    """Where an output token came from."""

    CLOUD = "cloud"  # decoded by the cloud's model
    DEVICE = "device"  # decoded by a device's own model
    DRAFT = "draft"  # drafted, and accepted by the target
    CORRECTED = "corrected"  # the target's own token in place of a rejected draft
    BONUS = "bonus"  # the target's own token after a fully accepted draft


@dataclass(slots=True)
class TokenLog:
    """Output tokens by position, with origin and arrival time (seconds, the executor's monotonic clock)."""

    ids: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)

    def append(self, position: int, ids: Iterable[int], origins: Iterable[Origin], now_s: float) -> None:
        """Add tokens that begin at output `position`; raises ValueError on a gap or a repetition."""
        if position != len(self.ids):
            raise ValueError(f"token log holds {len(self.ids)} tokens; cannot append at position {position}")
        added = list(zip(ids, origins, strict=True))
        self.ids.extend(i for i, _ in added)
        self.origins.extend(o for _, o in added)
        self.times_s.extend([now_s] * len(added))

    def by_origin(self) -> dict[str, int]:
        """How many tokens came from each origin that occurs."""
        counts: dict[str, int] = {}
        for origin in self.origins:
            counts[origin.value] = counts.get(origin.value, 0) + 1
        return counts

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[int, Origin]]:
        return iter(zip(self.ids, self.origins, strict=True))
