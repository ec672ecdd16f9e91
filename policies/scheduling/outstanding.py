"""Outstanding work of an engine's sessions in sum, which it reports for autoscaling."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tandem.policies.scheduling.control import SessionView


class Outstanding(NamedTuple):
    """Outstanding work of sessions.

    backlog: tokens to compute or swap in before the sessions with work decode, drafts to verify included.
    reading: tokens/s that readers consume, each capped by what an engine can give.
    starving: begun sessions with work whose readers, capped likewise, have nothing left to read.
    awaited: tokens of sessions with work that hold no KV cache.
    """

    backlog: int = 0
    reading: float = 0.0
    starving: int = 0
    awaited: int = 0


def outstanding(sessions: Iterable[SessionView], now_s: float, step_s: float = 0.0) -> Outstanding:
    """Return the sum over `sessions` at `now_s`. step_s: least seconds of a step, so of every token of a session."""
    backlog, reading, starving, awaited = 0, 0.0, 0, 0
    for s in sessions:
        rate = s.reader.rate
        fast = rate * step_s > 1  # faster than any engine could serve
        reading += 1 / step_s if fast else rate
        if not s.wanting:
            continue
        backlog += max(0, s.missing)
        if not s.admitted:
            awaited += s.reach(1)
        starving += not fast and s.received > 0 and s.reader.dry_s(now_s) <= 0
    return Outstanding(backlog, reading, starving, awaited)
