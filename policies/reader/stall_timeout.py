"""How long to wait for an answer's next tokens before whoever gives them counts as stalled.

Nothing is lost by waiting while the reader has something to read, and the engine may well have put the answer off for
that very reason. Once they run dry, every second counts, if somebody else could go on.
"""

from __future__ import annotations

from tandem.policies.reader.quality import Reader

FACTOR, GRACE = 8.0, 3.0
"""Times the usual interval: after so many something is wrong, after so many a reader has waited long enough."""
FLOOR_S = 4.0
"""No interval is too long that is shorter: a busy engine may let answers wait in turn."""
FADE = 0.97
"""What is left of a long interval with each shorter one that follows: half of it after 23."""


class Pace:
    """The intervals at which one endpoint gives tokens. longest_s: the longest lately, of which older ones fade; it
    stands for a high quantile, at no cost."""

    __slots__ = ("longest_s",)

    def __init__(self) -> None:
        self.longest_s = 0.0

    def note(self, seconds: float) -> None:
        """Tokens came so long after they were asked for, or after those before them."""
        self.longest_s = max(seconds, FADE * self.longest_s)


def next_token_s(longest_s: float, step_s: float, dry_s: float | None) -> float:
    """Seconds to wait for the next token, `step_s` at most.

    longest_s: the longest usual interval.
    dry_s: seconds until the reader has read everything; None: nobody reads along.
    """
    usual_s = max(FLOOR_S, FACTOR * longest_s)
    if dry_s is not None:
        usual_s = max(dry_s, min(usual_s, dry_s + max(FLOOR_S, GRACE * longest_s)))
    return min(step_s, usual_s)


class Patience:
    """Of one request.

    step_s: the longest that is waited in any case.
    reader_rate: tokens/s, 0: nobody reads along.
    begun: the reader has got some of the answer.
    """

    __slots__ = ("_reader", "_stalls", "_step_s", "begun")

    def __init__(self, step_s: float, reader_rate: float = 0.0) -> None:
        self._step_s, self._stalls, self.begun = step_s, 0, False
        self._reader = Reader(reader_rate) if reader_rate else None

    def delivered(self, tokens: int, now_s: float) -> None:
        """So many more tokens of the answer are on their way to the reader."""
        self.begun = True
        if self._reader is not None:
            self._reader.deliver(tokens, now_s)

    def stalled(self) -> None:
        """Somebody was given up. Should that be because all are busy, going on elsewhere makes it worse: from now on
        this request waits for twice as long."""
        self._stalls += 1

    def next_s(self, longest_s: float, replaceable: bool, now_s: float) -> float:
        """How long to wait for an endpoint's next tokens.

        longest_s: as its pace has it, or what its first ones are expected to take.
        replaceable: somebody else could go on; where nobody could, there is no reason to hurry.
        """
        if not replaceable:
            return self._step_s
        dry_s = None if self._reader is None else self._reader.dry_s(now_s)
        limit_s = next_token_s(longest_s, self._step_s, dry_s)
        return min(self._step_s, limit_s * 2**self._stalls) if self._stalls else limit_s
