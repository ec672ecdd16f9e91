"""What a draft–target pair has seen: the recent past, from which a window policy's snapshot is made.

Pure bookkeeping shared by the live system and the simulator, so that a policy sees the same thing in both.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple

from policies.speculation import expected_tokens
from policies.window import WindowPolicy, WindowState

RECENT_ROUNDS = 24  # what "recent" looks back on: fewer would leave acceptance to chance
MEMORY = 512  # judged tokens of a target's pairs, over which their acceptance is averaged
FUSED_ROUNDS = 256  # of a target, over which the tokens that they give are averaged
PRIOR_ROUNDS = 4.0  # that what is expected of fused rounds counts for
LEAST_OF = 256  # rounds of a target, among which one found it idle
MOST_PAIRS = 32  # whose latest rounds make up a target's regime
LEAST_WEIGHT = 0.05  # of a round in the other regime


class Round(NamedTuple):
    """One speculative round. drafted, accepted, judged, tokens: counts, `judged` being the accepted ones and the
    first rejected one, `tokens` what the round added to the output; verify_s: at the target, queueing
    included; draft_s: at the drafter; both in seconds. weight: how much the round says about what such rounds take
    where all of the target's pairs make them; weighed_s: verify_s times that."""

    drafted: int
    accepted: int
    judged: int
    tokens: int
    verify_s: float
    draft_s: float
    weight: float
    weighed_s: float


_NOTHING = Round(0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)


class Least:
    """The least of the last values, of `memory` of them at least and twice as many at most; 0 before there was one."""

    __slots__ = ("_before", "_count", "_memory", "_now")

    def __init__(self, memory: int = LEAST_OF) -> None:
        self._memory, self._count = memory, 0
        self._now = self._before = inf

    def note(self, value: float) -> None:
        if self._count == self._memory:
            self._before, self._now, self._count = self._now, inf, 0
        self._count += 1
        self._now = min(self._now, value)

    @property
    def value(self) -> float:
        least = min(self._now, self._before)
        return 0.0 if least == inf else least


class Target:
    """What all pairs of one target have seen lately, from which a pair knows what it has not seen itself.

    fused_s: seconds per output token of fused rounds, in which no device has a part; 0 before there was one.
    alpha: accepted drafts as a share of judged ones (see WindowState), over all devices; 0 before there were any.
    fused_least_s, verify_least_s: of fused_s and of verifications, what was seen where least stood in the way.
    pairs: how many share it; fused: what part of their rounds is fused at present; window: the mean window of the other
    rounds, 0 before there was one.

    A round takes as long as what the others do meanwhile lets it: tried by one pair alone, a fused round says little
    about how long it takes where all are fused, which is what choosing it leads to, since all choose alike. So rounds
    are weighed by how far the others did the same.
    """

    __slots__ = (
        "_count",
        "_judged",
        "_latest",
        "_least_fused",
        "_least_verify",
        "_rounds",
        "_tokens",
        "alpha",
        "fused",
        "fused_least_s",
        "fused_s",
        "pairs",
        "window",
    )

    def __init__(self) -> None:
        self._rounds: deque[tuple[float, float]] = deque(maxlen=RECENT_ROUNDS)  # weights, weighed seconds
        self._tokens = self._count = self._judged = 0.0
        self._least_fused, self._least_verify = Least(), Least()
        self.fused_s = self.fused_least_s = self.alpha = self.fused = self.window = 0.0
        self.pairs = 0
        self._latest = 1  # rounds that make up what the pairs do at present

    @property
    def verify_least_s(self) -> float:
        return self._least_verify.value

    def note_fused(self, drafted: int, tokens: int, seconds: float, cut: bool = False) -> None:
        """A fused round is over. How long one takes may change by the minute; how many tokens it gives is a matter of
        luck that only many rounds even out, and until then of what the devices' acceptance lets one expect.

        cut: the output's end left it less to draft, so it says nothing of others.
        """
        self._turn(1.0)
        if cut and self.fused_s > 0:
            return
        weight = LEAST_WEIGHT + self.fused**2
        self._rounds.append((weight, weight * seconds))
        round_s = sum(s for _, s in self._rounds) / sum(w for w, _ in self._rounds)
        if self._count >= FUSED_ROUNDS:
            self._tokens -= self._tokens / FUSED_ROUNDS
            self._count -= 1
        self._tokens += tokens
        self._count += 1
        prior = PRIOR_ROUNDS if self._judged else 0.0
        expected = prior * expected_tokens(self.alpha, drafted)
        self._least_fused.note(seconds)
        rounds_per_token = (self._count + prior) / (self._tokens + expected)
        self.fused_s = round_s * rounds_per_token
        self.fused_least_s = self._least_fused.value * rounds_per_token

    def note(self, accepted: int, judged: int, verify_s: float) -> float:
        """A round with a device is over; old ones fade. Returns its weight."""
        self._turn(0.0)
        self._least_verify.note(verify_s)
        if judged:
            self._judged = min(self._judged + judged, float(MEMORY))
            self.alpha += (accepted - self.alpha * judged) / self._judged
        return LEAST_WEIGHT + (1.0 - self.fused) ** 2

    def note_window(self, window: int) -> None:
        """A pair has chosen; fused rounds have no window."""
        if window > 1:
            self.window += (window - self.window) / (self._latest if self.window else 1)

    def _turn(self, fused: float) -> None:
        self.fused += (fused - self.fused) / self._latest

    def join(self) -> None:
        """There is one more pair."""
        self.pairs += 1
        self._latest = min(self.pairs, MOST_PAIRS)


class Pair:
    """Asks the window policy for γ with what this draft–target pair has seen in its recent rounds.

    rtt_s, queue: the link's round-trip time in seconds and the target's open sessions in relation to its batch
    limit, both as last observed; whoever observes them sets them. target: what its pairs share.
    """

    __slots__ = ("_policy", "_previous", "_rounds", "_sums", "_target", "queue", "rtt_s")

    def __init__(
        self, policy: WindowPolicy, rtt_s: float = 0.0, queue: float = 0.0, target: Target | None = None
    ) -> None:
        self._policy, self.rtt_s, self.queue = policy, rtt_s, queue
        self._rounds: deque[Round] = deque()
        self._sums: Round = _NOTHING
        self._target = target or Target()
        self._target.join()
        self._previous = 0

    def note(self, drafted: int, accepted: int, tokens: int, verify_s: float, draft_s: float) -> None:
        """A round of these two is over."""
        judged = accepted + (accepted < drafted)
        weight = self._target.note(accepted, judged, verify_s)
        new = Round(drafted, accepted, judged, tokens, verify_s, draft_s, weight, weight * verify_s)
        self._rounds.append(new)
        old = self._rounds.popleft() if len(self._rounds) > RECENT_ROUNDS else _NOTHING
        a, b, c, d, e, f, g, h = self._sums
        self._sums = Round(
            a + drafted - old[0],
            b + accepted - old[1],
            c + judged - old[2],
            d + tokens - old[3],
            e + verify_s - old[4],
            f + draft_s - old[5],
            g + weight - old[6],
            h + new.weighed_s - old[7],
        )

    def note_fused(self, drafted: int, tokens: int, seconds: float, cut: bool = False) -> None:
        """The cloud went on without the device for a round, see Target; what is known of the device stays."""
        self._target.note_fused(drafted, tokens, seconds, cut)

    def state(self) -> WindowState:
        """The snapshot a policy decides from."""
        drafted, accepted, judged, tokens, verify_s, draft_s, weight, weighed_s = self._sums
        tpot_s = verify_s / tokens if tokens else 0.0
        target = self._target
        shared, fused_s = target.pairs > 1, target.fused_s
        if self._previous <= 1 and fused_s > 0:
            tpot_s = fused_s
        return WindowState(
            acceptance=accepted / drafted if drafted else 0.0,
            rtt_s=self.rtt_s,
            tpot_s=max(0.0, tpot_s),
            queue=self.queue,
            previous=self._previous,
            verify_s=max(0.0, weighed_s / weight) if self._rounds else 0.0,
            draft_s=max(0.0, draft_s / drafted) if drafted else 0.0,
            fused_s=fused_s,
            alpha=accepted / judged if judged else 0.0,
            judged=judged,
            prior=target.alpha,
            verify_least_s=target.verify_least_s,
            fused_least_s=target.fused_least_s,
            fused_share=target.fused if shared else 0.5,
            mean_window=target.window if shared else 0.0,
        )

    def choose(self) -> int:
        """γ for the next round."""
        self._previous = self._policy.choose(self.state())
        self._target.note_window(self._previous)
        return self._previous
