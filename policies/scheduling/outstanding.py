"""What an engine's sessions still want from it, in sum: what it tells of itself to whoever sizes its pool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tandem.policies.scheduling.control import SessionView


class Outstanding(NamedTuple):
    """backlog: tokens to be computed or brought back before those with work decode; drafts to be verified among them.
    reading: tokens/s that readers take in, none of them faster than an engine could give them.
    starving: sessions with work that have begun, and whose readers, no faster than that, have nothing left to read.
    awaited: tokens of those with work that hold no KV cache.
    """

    backlog: int = 0
    reading: float = 0.0
    starving: int = 0
    awaited: int = 0


def outstanding(sessions: Iterable[SessionView], now_s: float, step_s: float = 0.0) -> Outstanding:
    """Of these sessions, at this time. step_s: what a step takes at least, and so every token of a session."""
    backlog, reading, starving, awaited = 0, 0.0, 0, 0
    for s in sessions:
        rate = s.reader.rate
        fast = rate * step_s > 1  # nothing that anybody does will satisfy them
        reading += 1 / step_s if fast else rate
        if not s.wanting:
            continue
        backlog += max(0, s.missing)
        if not s.admitted:
            awaited += s.reach(1)
        starving += not fast and s.received > 0 and s.reader.dry_s(now_s) <= 0
    return Outstanding(backlog, reading, starving, awaited)
