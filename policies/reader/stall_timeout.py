"""Stall timeout: how long to wait for an answer's next tokens before its endpoint counts as stalled.

Waiting costs nothing while the reader has unread tokens, and the engine may have delayed the answer for that very
reason. Once the buffer is dry, every second counts, if another endpoint could go on: then an endpoint that is late is
asked whether it is there at all. One that says nothing is given up at once, one that is there has the stall timeout.
"""

from __future__ import annotations

from tandem.policies.reader.quality import Reader

FACTOR = 3.0
"""Times as long as the usual interval that a wait may be: an interval that is long already has the noise in it, and
what is slow and then hangs should not be waited for much longer."""
FLOOR_S = 4.0
"""Shortest timeout: a busy engine may let answers take turns."""
QUIET_S = 1.25
"""Interval after which an endpoint is late, and asked whether it is there."""
PROBE_S = 1.25
"""Longest that it may take to say so."""
FADE = 0.97
"""Decay of the longest interval with each shorter one: half of it is left after 23."""


class Pace:
    """Intervals at which one endpoint gives tokens. longest_s: the longest recent one, decaying; stands for a high
    quantile at no cost."""

    __slots__ = ("longest_s",)

    def __init__(self) -> None:
        self.longest_s = 0.0

    def note(self, seconds: float) -> None:
        """Record tokens that came `seconds` after the previous ones, or after the request."""
        self.longest_s = max(seconds, FADE * self.longest_s)


def next_token_s(longest_s: float, step_s: float, dry_s: float | None) -> float:
    """Return the seconds to wait for the next token, at most `step_s`.

    longest_s: longest usual interval.
    dry_s: seconds until the reader has read everything; None without a reader.
    """
    return min(step_s, max(FLOOR_S, FACTOR * longest_s, dry_s or 0.0))


class Patience:
    """Stall timeouts of one request.

    step_s: upper limit of each wait.
    reader_rate: tokens/s, 0 without a reader.
    begun: whether the reader has got some of the answer.
    """

    __slots__ = ("_reader", "_stalls", "_step_s", "begun")

    def __init__(self, step_s: float, reader_rate: float = 0.0) -> None:
        self._step_s, self._stalls, self.begun = step_s, 0, False
        self._reader = Reader(reader_rate) if reader_rate else None

    def delivered(self, tokens: int, now_s: float) -> None:
        """Record that `tokens` more tokens of the answer are sent to the reader."""
        self.begun = True
        if self._reader is not None:
            self._reader.deliver(tokens, now_s)

    def stalled(self) -> None:
        """Record that an endpoint was given up, and double further timeouts: if all are busy, moving makes it worse."""
        self._stalls += 1

    def probe_s(self, now_s: float) -> float:
        """Return the seconds after which an endpoint is asked whether it is there."""
        return QUIET_S if self._reader is None else max(QUIET_S, self._reader.dry_s(now_s))

    def next_s(self, longest_s: float, replaceable: bool, now_s: float) -> float:
        """Return the seconds to wait for an endpoint's next tokens.

        longest_s: as in its Pace, or the expected time of its first tokens.
        replaceable: whether another endpoint could go on; otherwise only `step_s` limits the wait.
        """
        if not replaceable:
            return self._step_s
        dry_s = None if self._reader is None else self._reader.dry_s(now_s)
        limit_s = next_token_s(longest_s, self._step_s, dry_s)
        return min(self._step_s, limit_s * 2**self._stalls) if self._stalls else limit_s
