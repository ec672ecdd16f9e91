"""Copies of resumable streams, from which a replica of the API goes on with those of another one: in memory, bounded.

A stream is its owner's: the replica that was asked for it last. Whatever another one says of it is refused.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tandem.deployments.request.tokenlog import Origin

MOST_BYTES = 2**26
"""Size of all copies, beyond which the oldest give way."""


class Outcome(StrEnum):
    """Outcome of a stream's news.

    KEPT: a client may have its events.
    UNKNOWN: what came before is not here (any more): all of the stream is to be sent.
    MOVED: the stream is another replica's.
    """

    KEPT = "kept"
    UNKNOWN = "unknown"
    MOVED = "moved"


class StreamRequest(NamedTuple):
    """Request that a stream answers.

    path: of the API, "/v1/chat/completions" for example.
    body: its JSON.
    created: seconds since the epoch.
    """

    path: str
    body: bytes
    created: int


@dataclass(slots=True)
class Said:
    """Tokens of a choice that are in a stream's events. finish: why it ended; None before."""

    ids: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    finish: str | None = None

    def add(self, ids: Sequence[int], origins: Sequence[Origin], finish: str | None) -> None:
        """Append tokens."""
        self.ids += ids
        self.origins += origins
        self.finish = finish

    def since(self, first: int) -> Said:
        """Return the tokens from position `first` on."""
        return Said(self.ids[first:], self.origins[first:], self.finish)


class StreamNews(NamedTuple):
    """News of a stream: what follows its first `first` events.

    account, id: whose it is, and the answer's id.
    events: as its client gets them.
    said: by choice, the tokens that are new in them.
    over: whether nothing follows.
    request: with the first news, None with later ones.
    """

    account: str
    id: str
    first: int
    events: Sequence[bytes]
    said: Sequence[Said]
    over: bool = False
    request: StreamRequest | None = None


@dataclass(slots=True)
class StreamCopy:
    """Copy of a stream. Fields as in StreamNews."""

    request: StreamRequest
    events: list[bytes]
    said: list[Said]
    over: bool


@dataclass(slots=True)
class _Entry:
    owner: str
    copy: StreamCopy
    until_s: float
    size: int


class StreamCopies:
    """Copies by account and id; other accounts' are not found. Each is kept for some time after its last news."""

    def __init__(self, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: returns seconds."""
        self._keep_s, self._clock = keep_s, clock
        self._entries: OrderedDict[tuple[str, str], _Entry] = (
            OrderedDict()
        )  # the one with the oldest news first
        self._size = 0

    async def take(self, owner: str, news: Sequence[StreamNews]) -> list[Outcome]:
        """Take in news of an owner's streams; return what became of each."""
        outcomes = [self._take(owner, each) for each in news]
        self._make_room()
        return outcomes

    async def claim(self, account: str, id: str, owner: str) -> StreamCopy | None:
        """Make a stream this owner's, and return its copy; None if there is none, or not any more."""
        self._make_room()
        entry = self._entries.get((account, id))
        if entry is None:
            return None
        entry.owner, entry.until_s = owner, self._clock() + self._keep_s
        self._entries.move_to_end((account, id))
        return entry.copy

    async def forget(self, streams: Sequence[tuple[str, str]]) -> None:
        """Forget streams, by account and id."""
        for key in streams:
            self._drop(key)

    def _take(self, owner: str, news: StreamNews) -> Outcome:
        key = news.account, news.id
        entry = self._entries.get(key)
        if entry is not None and entry.owner != owner:
            return Outcome.MOVED
        if news.request is not None:
            self._drop(key)
            said = [each.since(0) for each in news.said]
            copy = StreamCopy(news.request, list(news.events), said, news.over)
            entry = self._entries[key] = _Entry(owner, copy, 0.0, len(news.request.body))
            self._size += entry.size
        elif entry is None or news.first != len(entry.copy.events):
            return Outcome.UNKNOWN
        else:
            entry.copy.events += news.events
            for before, new in zip(entry.copy.said, news.said, strict=True):
                before.add(new.ids, new.origins, new.finish)
            entry.copy.over = news.over
        size = sum(map(len, news.events))
        entry.size += size
        self._size += size
        entry.until_s = self._clock() + self._keep_s
        self._entries.move_to_end(key)
        return Outcome.KEPT

    def _drop(self, key: tuple[str, str]) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self._size -= entry.size

    def _make_room(self) -> None:
        """Forget what is too old, and the oldest while there is too much."""
        now_s = self._clock()
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.until_s > now_s and self._size <= MOST_BYTES:
                return
            self._drop(key)
