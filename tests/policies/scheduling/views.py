"""Sessions and memory of a scheduling control, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandem.policies.reader.quality import Reader
from tandem.policies.scheduling.control import MemoryView, SessionView


@dataclass(eq=False)
class SessionData:
    """A SessionView. prompt: tokens."""

    number: int
    opened_s: float = 0.0
    reader: Reader = field(default_factory=lambda: Reader(10.0))
    fresh: bool = False
    paused: bool = False
    rank: int = -1
    wanting: bool = True
    admitted: bool = True
    received: int = 20
    longest: int = 100
    missing: int = 0
    stored: int = 0
    prompt: int = 40

    def reach(self, more: int) -> int:
        return self.prompt + min(self.received + more, self.longest)


@dataclass(frozen=True)
class MemoryData:
    """A MemoryView."""

    capacity: int = 10_000
    block_size: int = 16
    places: int = 64
    copy_s: float = float("inf")
    copy_queue_s: float = 0.0


def _these_are_views(session: SessionData, memory: MemoryData) -> tuple[SessionView, MemoryView]:
    """Check the types statically."""
    return session, memory
