"""The token log: what a request has said so far, and who said it.

A request is its prompt plus this append-only log. Any endpoint can continue any request from the two,
which is what failover, hand-over and speculation rest on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Origin(StrEnum):
    """Origin of an output token."""

    CLOUD = "cloud"  # decoded by the cloud's model
    DEVICE = "device"  # decoded by a device's own model
    DRAFT = "draft"  # drafted, and accepted by the target
    CORRECTED = "corrected"  # the target's own token in place of a rejected draft
    BONUS = "bonus"  # the target's own token after a fully accepted draft
    SKETCH = "sketch"  # of the sketch, shown before the answer
    EXPANSION = "expansion"  # written by a small model, after the target's sketch


@dataclass(slots=True)
class TokenLog:
    """Output tokens by position, with their origins."""

    ids: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)

    def append(self, position: int, ids: Sequence[int], origins: Sequence[Origin]) -> None:
        """Add tokens that begin at output `position`; raises ValueError on a gap or a repetition, or where tokens and
        origins are not as many."""
        if position != len(self.ids):
            raise ValueError(f"token log holds {len(self.ids)} tokens; cannot append at position {position}")
        if len(ids) != len(origins):
            raise ValueError(f"{len(ids)} tokens with {len(origins)} origins")
        self.ids += ids
        self.origins += origins

    def by_origin(self) -> dict[str, int]:
        """Return the number of tokens by origin, for each that occurs."""
        return {origin.value: count for origin, count in Counter(self.origins).items()}

    def __len__(self) -> int:
        return len(self.ids)
