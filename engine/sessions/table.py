"""Open sessions of an engine that holds them itself, up to a number."""

from __future__ import annotations

import copy
from typing import Generic, Protocol, TypeVar

from tandem.engine.base import EngineStats, NoCapacity


class Listed(Protocol):
    """A session as the table sees it."""

    @property
    def busy(self) -> bool: ...

    @property
    def finish(self) -> str | None: ...


S = TypeVar("S", bound=Listed)


class SessionTable(Generic[S]):
    """Sessions in the order in which they were opened, and the engine's counters.

    counters: statistics, in which a session takes a KV block.
    """

    def __init__(self, capacity: int) -> None:
        self.counters = EngineStats(blocks_total=capacity)
        self._sessions: dict[S, None] = {}

    def check_room(self) -> None:
        """Raise NoCapacity if there is no room for another session."""
        if len(self._sessions) >= self.counters.blocks_total:
            raise NoCapacity(f"all {self.counters.blocks_total} sessions are taken")

    def add(self, session: S) -> None:
        """Enter a session that was opened, or is about to be."""
        self._sessions[session] = None

    def discard(self, session: S) -> None:
        """Forget a session that was not opened."""
        self._sessions.pop(session, None)

    def remove(self, session: S) -> None:
        """Remove a session that has ended."""
        if session in self._sessions:
            del self._sessions[session]
            self.counters.cancelled += session.finish is None
            self.counters.finished += session.finish is not None

    def clear(self) -> list[S]:
        """Forget all sessions and return them: the engine closes."""
        sessions, self._sessions = list(self._sessions), {}
        return sessions

    def stats(self) -> EngineStats:
        """Return the statistics of now."""
        self.counters.sessions = len(self._sessions)
        self.counters.running = sum(session.busy for session in self._sessions)
        self.counters.blocks_free = self.counters.blocks_total - len(self._sessions)
        return copy.copy(self.counters)
