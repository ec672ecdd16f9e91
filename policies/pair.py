"""What a draft–target pair has seen: the recent past, from which a window policy's snapshot is made.

Pure bookkeeping shared by the live system and the simulator, so that a policy sees the same thing in both.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from policies.window import WindowPolicy, WindowState

RECENT_ROUNDS = 24  # what "recent" looks back on: fewer would leave acceptance to chance
MEMORY = 512  # judged tokens of a target's pairs, over which their acceptance is averaged


class Round(NamedTuple):
    """One speculative round. drafted, accepted, judged, tokens: counts, `judged` being the accepted ones and the
    first rejected one, `tokens` what the round added to the output; verify_s: at the target, queueing
    included; draft_s: at the drafter; both in seconds."""

    drafted: int
    accepted: int
    judged: int
    tokens: int
    verify_s: float
    draft_s: float


_NOTHING = Round(0, 0, 0, 0, 0.0, 0.0)


class Target:
    """What all pairs of one target have seen lately, from which a pair knows what it has not seen itself.

    fused_s: seconds per output token of fused rounds, in which no device has a part; 0 before there was one.
    alpha: accepted drafts as a share of judged ones (see WindowState), over all devices; 0 before there were any.
    """

    __slots__ = ("_fused", "_judged", "alpha", "fused_s")

    def __init__(self) -> None:
        self._fused: deque[tuple[int, float]] = deque(maxlen=RECENT_ROUNDS)  # tokens, seconds
        self._judged = 0.0
        self.fused_s = self.alpha = 0.0

    def note_fused(self, tokens: int, seconds: float) -> None:
        """A fused round is over."""
        self._fused.append((tokens, seconds))
        self.fused_s = sum(s for _, s in self._fused) / sum(n for n, _ in self._fused)

    def note(self, accepted: int, judged: int) -> None:
        """A round with a device is over; old ones fade."""
        self._judged = min(self._judged + judged, float(MEMORY))
        self.alpha += (accepted - self.alpha * judged) / self._judged


class Pair:
    """Asks the window policy for γ with what this draft–target pair has seen in its recent rounds.

    rtt_s, queue: the link's round-trip time in seconds and the target's queue depth as a share of its batch
    limit, both as last observed; whoever observes them sets them. target: what its pairs share.
    """

    __slots__ = ("_policy", "_previous", "_rounds", "_sums", "_target", "queue", "rtt_s")

    def __init__(
        self, policy: WindowPolicy, rtt_s: float = 0.0, queue: float = 0.0, target: Target | None = None
    ) -> None:
        self._policy, self.rtt_s, self.queue = policy, rtt_s, queue
        self._rounds: deque[Round] = deque()
        self._sums = (0, 0, 0, 0, 0.0, 0.0)
        self._target = target or Target()
        self._previous = 0

    def note(self, drafted: int, accepted: int, tokens: int, verify_s: float, draft_s: float) -> None:
        """A round of these two is over."""
        judged = accepted + (accepted < drafted)
        if judged:
            self._target.note(accepted, judged)
        new = Round(drafted, accepted, judged, tokens, verify_s, draft_s)
        self._rounds.append(new)
        old = self._rounds.popleft() if len(self._rounds) > RECENT_ROUNDS else _NOTHING
        a, b, c, d, e, f = self._sums
        self._sums = (
            a + drafted - old[0],
            b + accepted - old[1],
            c + judged - old[2],
            d + tokens - old[3],
            e + verify_s - old[4],
            f + draft_s - old[5],
        )

    def note_fused(self, tokens: int, seconds: float) -> None:
        """The cloud went on without the device for a round; what is known of the device stays as it was."""
        self._target.note_fused(tokens, seconds)

    def state(self) -> WindowState:
        """The snapshot a policy decides from."""
        drafted, accepted, judged, tokens, verify_s, draft_s = self._sums
        tpot_s = verify_s / tokens if tokens else 0.0
        fused_s = self._target.fused_s
        if self._previous <= 1 and fused_s > 0:
            tpot_s = fused_s
        return WindowState(
            acceptance=accepted / drafted if drafted else 0.0,
            rtt_s=self.rtt_s,
            tpot_s=max(0.0, tpot_s),
            queue=self.queue,
            previous=self._previous,
            verify_s=max(0.0, verify_s / len(self._rounds)) if self._rounds else 0.0,
            draft_s=max(0.0, draft_s / drafted) if drafted else 0.0,
            fused_s=fused_s,
            alpha=accepted / judged if judged else 0.0,
            judged=judged,
            prior=self._target.alpha,
        )

    def choose(self) -> int:
        """γ for the next round."""
        self._previous = self._policy.choose(self.state())
        return self._previous
