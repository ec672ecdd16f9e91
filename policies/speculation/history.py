"""Statistics of draft–target pairs: recent rounds, from which a window policy's state is made.

Pure bookkeeping shared by the live system and the simulator, so that a policy sees the same in both. `snapshot` makes
plain data of it, `adopt` takes that over in another process, where all decisions are then the same.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple

from tandem.policies.speculation.arithmetic import FIRST_ALPHA, expected_tokens
from tandem.policies.speculation.drafting import DraftChoice
from tandem.policies.speculation.spread import Spread
from tandem.policies.speculation.window import Remembering, WindowPolicy, WindowState

RECENT_ROUNDS = 24  # window of recent rounds: with fewer, acceptance would be noise
MEMORY = 512  # judged tokens of a target's pairs, over which their acceptance is averaged
FUSED_ROUNDS = 256  # of a target, over which their tokens are averaged
PRIOR_ROUNDS = 4.0  # weight of the expected length of fused rounds
LEAST_OF = 256  # rounds of a target, one of which is assumed to find it idle
MOST_PAIRS = 32  # whose latest rounds make up a target's regime
PRESENT = RECENT_ROUNDS * MOST_PAIRS  # rounds of a target after which a pair without a part in them has left
ALONE_TOKENS = 64.0  # tokens of the target alone, over which their time is averaged
LEAST_WEIGHT = 0.05  # of a round in the other regime
VERIFIED = 64  # rounds of all pairs of a target, over which their verifications are averaged
FIRST_JUDGED = 12.0  # judged tokens that FIRST_ALPHA counts as in a target's acceptance
KNOWN = 4  # rounds of a target from which on a new pair relies on them; one that decodes alone makes few more
GROWTH_MEMORY = 512.0  # squared differences of windows, over which a further draft's time is averaged
GROWTH_PRIOR = 8.0  # of these, that count as a time in proportion to the drafts


class SpeculativeRound(NamedTuple):
    """One speculative round.

    drafted: number of drafted tokens.
    accepted: drafted tokens that the target accepted.
    judged: accepted tokens and the first rejected one.
    tokens: output tokens of the round.
    verify_s: seconds at the target, queueing included.
    draft_s: seconds at the drafter; 0 if it first read what it had missed.
    weight: how well the round represents rounds while all of the target's pairs make such ones.
    weighed_s, weighed_drafts: verify_s and drafted times weight.
    timed: tokens that draft_s is for.
    read: tokens that the drafter had missed and first read.
    read_s: seconds at the drafter of a round with such tokens, else 0.
    untimed: tokens that were drafted in it as well.
    first: 1 for the first one of an answer, else 0.
    """

    drafted: int
    accepted: int
    judged: int
    tokens: int
    verify_s: float
    draft_s: float
    weight: float
    weighed_s: float
    weighed_drafts: float
    timed: int
    read: int
    read_s: float
    untimed: int
    first: int = 0


_NOTHING = SpeculativeRound(0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0.0, 0)


class WindowedMin:
    """Minimum of the last values; 0 before the first.

    memory: number of values, at least; twice as many at most.
    """

    __slots__ = ("_before", "_count", "_memory", "_now")

    def __init__(self, memory: int = LEAST_OF) -> None:
        self._memory, self._count = memory, 0
        self._now = self._before = inf

    def note(self, value: float) -> None:
        if self._count == self._memory:
            self._before, self._now, self._count = self._now, inf, 0
        self._count += 1
        if value < self._now:
            self._now = value

    @property
    def value(self) -> float:
        least = min(self._now, self._before)
        return 0.0 if least == inf else least

    @property
    def state(self) -> tuple[int, float, float]:
        """Values since the memory was last renewed, their minimum, and the minimum of the memory before."""
        return self._count, self._now, self._before

    @state.setter
    def state(self, state: tuple[int, float, float]) -> None:
        self._count, self._now, self._before = state


class TargetSnapshot(NamedTuple):
    """State of a TargetHistory, to send to another process; fields not listed are as there.

    joined: number of pairs ever.
    present: pairs that take part at present, by number, and the round that each last took part in.
    rounds: weights and weighted seconds of the latest fused rounds.
    fused_rounds, fused_tokens: decaying counts of fused rounds and their tokens.
    verified: number of rounds that verify_s is averaged over, at most VERIFIED.
    judged: number of tokens that alpha is averaged over, at most MEMORY.
    least_fused, least_verify, least_draft: states of the minima.
    widened, widened_drafts, widened_verify: what draft_growth and verify_growth are made of.
    spread: state of the spread of acceptance.
    """

    seen: int
    joined: int
    present: tuple[tuple[int, int], ...]
    rounds: tuple[tuple[float, float], ...]
    fused_rounds: float
    fused_tokens: float
    judged: float
    least_fused: tuple[int, float, float]
    least_verify: tuple[int, float, float]
    alpha: float
    fused: float
    fused_s: float
    fused_least_s: float
    window: float
    alone_s: float
    verified: int = 0
    verify_s: float = 0.0
    least_draft: tuple[int, float, float] = (0, inf, inf)
    widened: float = 0.0
    widened_drafts: float = 0.0
    widened_verify: float = 0.0
    spread: tuple[float, float] = (0.0, 0.0)


class TargetHistory:
    """Recent statistics of all pairs of one target, which a pair uses for what it has not seen itself.

    A round's duration depends on what the others do meanwhile: tried by one pair alone, a fused round says little
    about its duration if all are fused, which is what choosing it leads to, since all choose alike. So rounds are
    weighted by how far the others did the same.

    seen: rounds, forgotten ones included.
    alpha: accepted drafts as a share of judged ones (see WindowState), over all devices; 0 before the first.
    fused: share of fused rounds among those at present.
    fused_s: seconds per output token of fused rounds, in which no device takes part; 0 before the first.
    fused_least_s: lower bound of fused_s, as seen with the least load.
    widened: squared differences between the windows of a pair's rounds in a row, forgotten beyond GROWTH_MEMORY.
    window: mean window of the other rounds; 0 before the first.
    alone_s: seconds per output token while it decodes alone; 0 if unknown.
    verify_s: seconds of a verification over its pairs' latest rounds; 0 before the first.
    queue: its open sessions relative to its batch limit, as last observed.
    queue_asked_s: when that was last observed, on the observers' clock.
    """

    __slots__ = (
        "_count",
        "_joined",
        "_judged",
        "_latest",
        "_least_draft",
        "_least_fused",
        "_least_verify",
        "_present",
        "_rounds",
        "_spread",
        "_tokens",
        "_verified",
        "_widened_drafts",
        "_widened_verify",
        "alone_s",
        "alpha",
        "base_s",
        "fused",
        "fused_least_s",
        "fused_s",
        "position_s",
        "queue",
        "queue_asked_s",
        "seen",
        "verify_s",
        "widened",
        "window",
    )

    def __init__(self) -> None:
        self._rounds: deque[tuple[float, float]] = deque(maxlen=RECENT_ROUNDS)  # weights, weighted seconds
        self._tokens = self._count = self._judged = 0.0
        self._least_fused, self._least_verify, self._least_draft = WindowedMin(), WindowedMin(), WindowedMin()
        self._spread = Spread()
        self._verified, self.verify_s = 0, 0.0
        self.widened = self._widened_drafts = self._widened_verify = 0.0
        self._present: dict[int, int] = {}  # pair → its last round
        self._joined = self.seen = 0
        self._latest = 1  # rounds over which the pairs' present behaviour is averaged
        self.fused_s = self.fused_least_s = self.alpha = self.fused = self.window = self.queue = 0.0
        self.alone_s = 0.0
        self.base_s = self.position_s = 0.0
        self.queue_asked_s = -inf

    @property
    def verify_least_s(self) -> float:
        """Lower bound of a verification's duration, as seen with the least load; seconds."""
        return self._least_verify.value

    @property
    def is_known(self) -> bool:
        """Whether a new pair may rely on what the others have seen."""
        return self._verified >= KNOWN

    @property
    def draft_least_s(self) -> float:
        """Least seconds per drafted token, over its pairs' latest rounds; 0 before the first."""
        return self._least_draft.value

    @property
    def draft_growth(self) -> float:
        """Seconds of a further draft, as a share of a draft's mean: 1 if a round's time is in proportion to its drafts,
        0 if all of them take one pass."""
        return min(1.0, max(0.0, (self._widened_drafts + GROWTH_PRIOR) / (self.widened + GROWTH_PRIOR)))

    @property
    def verify_growth(self) -> float:
        """Seconds of a verification for a further draft, as a share of verify_s; 0 if unknown, see `widened`."""
        return max(0.0, self._widened_verify / self.widened) if self.widened else 0.0

    @property
    def prior_weight(self) -> float:
        """Judged tokens that alpha counts as, beside a pair's own recent ones."""
        return self._spread.weight(self.alpha)

    @property
    def pairs(self) -> int:
        """Number of pairs that take part at present, capped at about MOST_PAIRS."""
        return len(self._present)

    def join(self) -> int:
        """Add a pair and return its number. It counts for as long as it takes part."""
        self._joined += 1
        self.take_part(self._joined)
        return self._joined

    def new_pair(self, rtt_s: float) -> WindowState:
        """Return the state of a pair that has made no round yet, and does not take part. rtt_s: of its link."""
        return WindowState(
            acceptance=0.0,
            rtt_s=rtt_s,
            tpot_s=0.0,
            queue=self.queue,
            previous=0,
            fused_s=self.fused_s,
            prior=self.alpha,
            verify_least_s=self.verify_least_s,
            alone_s=self.alone_s,
            shared_verify_s=max(0.0, self.verify_s) if self.is_known else 0.0,
            shared_draft_s=max(0.0, self.draft_least_s),
            draft_growth=self.draft_growth,
            verify_growth=self.verify_growth,
            widened=self.widened,
            prior_weight=self.prior_weight,
        )

    def take_part(self, pair: int) -> None:
        if pair not in self._present:
            self._latest = min(len(self._present) + 1, MOST_PAIRS)
        self._present[pair] = self.seen

    def leave(self, pair: int) -> None:
        """Remove a pair. A pair that has not taken part for PRESENT rounds is removed without a call."""
        self._present.pop(pair, None)
        self._latest = min(max(1, len(self._present)), MOST_PAIRS)

    def note_fused(self, drafted: int, tokens: int, seconds: float, cut: bool = False) -> None:
        """Record a fused round.

        Its duration may change by the minute; its tokens are averaged over many rounds, starting from what the
        devices' acceptance predicts.

        drafted, tokens: drafted by the cloud's own drafter, and added to the output.
        seconds: drafting and verification.
        cut: whether the output's end shortened the draft, so that the round is not representative.
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

    def note_alone(self, tokens: int, seconds: float) -> None:
        """Record tokens that the target decoded alone."""
        self._turn(1.0)
        weight = min(1.0, tokens / ALONE_TOKENS) if self.alone_s else 1.0
        self.alone_s += weight * (seconds / tokens - self.alone_s)

    def note(
        self,
        accepted: int,
        judged: int,
        verify_s: float,
        draft_s: float | None = None,
        before: tuple[float, float] = (0.0, 0.0),
    ) -> float:
        """Record a round with a device, and return its weight.

        draft_s: seconds a draft; None if they are not known.
        before: accepted and judged tokens of the pair's recent rounds.
        """
        self._turn(0.0)
        self._least_verify.note(verify_s)
        self._verified = min(self._verified + 1, VERIFIED)
        self.verify_s += (verify_s - self.verify_s) / self._verified
        if draft_s is not None:
            self._least_draft.note(draft_s)
        if judged:
            if not self._judged:
                self._judged, self.alpha = FIRST_JUDGED, FIRST_ALPHA
            self._spread.note(accepted, judged, before, self.alpha)
            self._judged = min(self._judged + judged, float(MEMORY))
            self.alpha += (accepted - self.alpha * judged) / self._judged
        return LEAST_WEIGHT + (1.0 - self.fused) ** 2

    def note_widened(self, by: int, drafts: float, verify: float) -> None:
        """Record two rounds of one pair, the later one of so many more drafts. drafts, verify: how much longer it took,
        over the mean time of a draft, and of a verification."""
        keep = min(1.0, GROWTH_MEMORY / (self.widened + by * by))
        self.widened = keep * (self.widened + by * by)
        self._widened_drafts = keep * (self._widened_drafts + by * drafts)
        self._widened_verify = keep * (self._widened_verify + by * verify)

    def note_window(self, window: int) -> None:
        """Record the window that a pair chose; fused rounds have none."""
        if window > 1:
            self.window += (window - self.window) / (self._latest if self.window else 1)

    def snapshot(self) -> TargetSnapshot:
        """Return the complete state, for another process."""
        return TargetSnapshot(
            seen=self.seen,
            joined=self._joined,
            present=tuple(self._present.items()),
            rounds=tuple(self._rounds),
            fused_rounds=self._count,
            fused_tokens=self._tokens,
            judged=self._judged,
            least_fused=self._least_fused.state,
            least_verify=self._least_verify.state,
            alpha=self.alpha,
            fused=self.fused,
            fused_s=self.fused_s,
            fused_least_s=self.fused_least_s,
            window=self.window,
            alone_s=self.alone_s,
            verified=self._verified,
            verify_s=self.verify_s,
            least_draft=self._least_draft.state,
            widened=self.widened,
            widened_drafts=self._widened_drafts,
            widened_verify=self._widened_verify,
            spread=self._spread.state,
        )

    def adopt(self, other: TargetSnapshot) -> None:
        """Take over a state that has seen more rounds, or any while this one has seen none."""
        if 0 < self.seen >= other.seen:
            return
        self.seen, self._joined = other.seen, max(self._joined, other.joined)
        self._present, self._rounds = dict(other.present), deque(other.rounds, maxlen=RECENT_ROUNDS)
        self._latest = min(max(1, len(other.present)), MOST_PAIRS)
        self._count, self._tokens, self._judged = other.fused_rounds, other.fused_tokens, other.judged
        self._least_fused.state, self._least_verify.state = other.least_fused, other.least_verify
        self._least_draft.state = other.least_draft
        self._verified, self.verify_s = other.verified, other.verify_s
        self.widened, self._spread.state = other.widened, other.spread
        self._widened_drafts, self._widened_verify = other.widened_drafts, other.widened_verify
        self.alpha, self.fused, self.window = other.alpha, other.fused, other.window
        self.fused_s, self.fused_least_s, self.alone_s = other.fused_s, other.fused_least_s, other.alone_s

    def _turn(self, fused: float) -> None:
        self.seen += 1
        self.fused += (fused - self.fused) / self._latest
        if self.seen % MOST_PAIRS == 0:
            self._forget()

    def _forget(self) -> None:
        """Remove pairs that have not taken part for long, and all but the latest of very many."""
        latest = sorted(self._present.items(), key=lambda item: item[::-1])[-MOST_PAIRS:]
        self._present = {pair: last for pair, last in latest if self.seen - last <= PRESENT}
        self._latest = len(self._present) or 1


class PairSnapshot(NamedTuple):
    """State of a PairHistory, to send to another process.

    seen: rounds of the pair, forgotten ones included.
    number: the pair's, among those of its target.
    previous: the window chosen last; 0 before the first.
    rounds: recent ones.
    sums: of their fields.
    memory: the window policy's; empty if it has none, or never chose in this process.
    target: the target's, shared by its pairs.
    drafting: state of the choice of drafts.
    """

    seen: int
    number: int
    previous: int
    rounds: tuple[SpeculativeRound, ...]
    sums: tuple[float, ...]
    memory: tuple[float, ...]
    target: TargetSnapshot
    drafting: tuple[float, float, float, float]


class PairHistory:
    """Calls the window policy with the recent statistics of one draft–target pair.

    policy: of this pair alone.
    rtt_s: round-trip time of the link as last observed, seconds; set by its observer.
    target: statistics shared by the target's pairs; None if there are no others.
    seen: rounds of the pair, forgotten ones included.
    drafting: choice of drafts for sampled answers.
    helper: whether the cloud has a drafter of its own for fused rounds; the mode sets it.
    """

    __slots__ = (
        "_chose",
        "_number",
        "_policy",
        "_previous",
        "_remembering",
        "_rounds",
        "_sums",
        "drafting",
        "helper",
        "rtt_s",
        "seen",
        "target",
    )

    def __init__(self, policy: WindowPolicy, rtt_s: float = 0.0, target: TargetHistory | None = None) -> None:
        self._policy, self.rtt_s = policy, rtt_s
        self._remembering = policy if isinstance(policy, Remembering) else None
        self._rounds: deque[SpeculativeRound] = deque()
        self._sums: tuple[float, ...] = _NOTHING
        self.target = target or TargetHistory()
        self.drafting = DraftChoice()
        self._number = self.target.join()
        self._previous = self.seen = 0
        self._chose = self.helper = False

    def note(
        self,
        drafted: int,
        accepted: int,
        tokens: int,
        verify_s: float,
        draft_s: float,
        read: int = 0,
        first: bool = False,
    ) -> None:
        """Record a round of this pair; see SpeculativeRound.

        read: tokens that the drafter had missed while the target decoded alone, and first read in draft_s; 0 for none.
        With the first round after one, times from before it are forgotten; what was accepted is not.
        first: whether it is the first one of its answer. Its times have the prompt in them, so that they tell nothing
        of what a verification takes, or a further draft.
        """
        self.target.take_part(self._number)
        self.seen += 1
        if not read and self._rounds and self._rounds[-1].read:
            self._forget_times()
        comparable = not read and not first and drafted > 0 and bool(self._rounds)
        if comparable and (before := self._rounds[-1]).timed and not before.first:
            self._note_widened(before, drafted, verify_s, draft_s)
        judged = accepted + (accepted < drafted)
        recent = SpeculativeRound._make(self._sums)
        weight = self.target.note(
            accepted,
            judged,
            verify_s,
            draft_s / drafted if drafted and not read else None,
            (recent.accepted, recent.judged),
        )
        if first:
            weight = 0.0
        new = SpeculativeRound(
            drafted,
            accepted,
            judged,
            tokens,
            verify_s,
            0.0 if read else draft_s,
            weight,
            weight * verify_s,
            weight * drafted,
            0 if read else drafted,
            read,
            draft_s if read else 0.0,
            drafted if read else 0,
            int(first),
        )
        self._rounds.append(new)
        old = self._rounds.popleft() if len(self._rounds) > RECENT_ROUNDS else _NOTHING
        self._sums = tuple([a + b - c for a, b, c in zip(self._sums, new, old, strict=True)])

    def _note_widened(self, before: SpeculativeRound, drafted: int, verify_s: float, draft_s: float) -> None:
        by, drafts_s, verifies_s = (
            drafted - before.timed,
            draft_s + before.draft_s,
            verify_s + before.verify_s,
        )
        if by and drafts_s > 0 and verifies_s > 0:
            drafts = (draft_s - before.draft_s) / drafts_s * (drafted + before.timed)
            self.target.note_widened(by, drafts, 2.0 * (verify_s - before.verify_s) / verifies_s)

    def _forget_times(self) -> None:
        self._rounds = deque(
            each._replace(draft_s=0.0, timed=0, weight=0.0, weighed_s=0.0, weighed_drafts=0.0)
            for each in self._rounds
        )
        self._sums = tuple(map(sum, zip(_NOTHING, *self._rounds, strict=True)))

    def note_fused(self, drafted: int, tokens: int, seconds: float, cut: bool = False) -> None:
        """Record a round of the cloud without the device, see TargetHistory; the device's statistics stay."""
        self.target.take_part(self._number)
        self.seen += 1
        self.target.note_fused(drafted, tokens, seconds, cut)

    def note_alone(self, tokens: int, seconds: float) -> None:
        """Record output of the target without drafts; the device's statistics stay."""
        self.target.take_part(self._number)
        self.seen += 1
        self._previous = 0
        self.target.note_alone(tokens, seconds)

    def note_drafting(self, sampled: bool, asked: int, accepted: int) -> None:
        """Record the acceptance of sampled or greedy drafts, see DraftChoice."""
        self.drafting.note(sampled, asked, accepted)

    @property
    def rests(self) -> bool:
        """Whether the target decoded alone last."""
        return self._previous == 0 and self.target.alone_s > 0

    def note_window(self, window: int) -> None:
        """Record a choice of the pair's policy in another process, whose rounds are recorded here."""
        if window > 0:
            self._previous = window
            self.target.note_window(window)

    def state(self, behind: int = 0) -> WindowState:
        """Return the state that a policy decides from. behind: tokens that the drafter has to read before it drafts."""
        sums = SpeculativeRound._make(self._sums)
        drafted, judged, tokens, weight = sums.drafted, sums.judged, sums.tokens, sums.weight
        tpot_s = sums.verify_s / tokens if tokens else 0.0
        draft_s = max(0.0, sums.draft_s / sums.timed) if sums.timed else 0.0
        target = self.target
        shared, fused_s = target.pairs > 1, target.fused_s
        if self._previous <= 1 and fused_s > 0:
            tpot_s = fused_s
        return WindowState(
            acceptance=sums.accepted / drafted if drafted else 0.0,
            rtt_s=self.rtt_s,
            tpot_s=max(0.0, tpot_s),
            queue=target.queue,
            previous=self._previous,
            verify_s=max(0.0, sums.weighed_s / weight) if weight > 0 else 0.0,
            draft_s=draft_s,
            fused_s=fused_s,
            alpha=sums.accepted / judged if judged else 0.0,
            judged=int(judged),
            prior=target.alpha,
            verify_least_s=target.verify_least_s,
            fused_least_s=target.fused_least_s,
            fused_share=target.fused if shared else 0.5,
            mean_window=target.window if shared else 0.0,
            alone_s=target.alone_s,
            drafted=max(0.0, sums.weighed_drafts / weight) if weight > 0 else 0.0,
            read_s=max(0.0, sums.read_s - sums.untimed * draft_s) / sums.read if sums.read else 0.0,
            behind=behind,
            own=max(1.0, (tokens - sums.accepted) / len(self._rounds)) if self._rounds else 1.0,
            helper=self.helper,
            shared_verify_s=max(0.0, target.verify_s) if target.is_known else 0.0,
            shared_draft_s=max(0.0, target.draft_least_s),
            draft_growth=target.draft_growth,
            verify_growth=target.verify_growth,
            widened=target.widened,
            prior_weight=target.prior_weight,
            pairs=target.pairs,
            base_s=target.base_s,
            position_s=target.position_s,
        )

    def choose(self, behind: int = 0) -> int:
        """Return γ for the next round. behind: tokens that the drafter has to read before it drafts."""
        self.target.take_part(self._number)
        self._chose = True
        self._previous = self._policy.choose(self.state(behind))
        self.target.note_window(self._previous)
        return self._previous

    @property
    def memory(self) -> tuple[float, ...]:
        """The window policy's memory; empty if it has none, or has neither chosen nor been restored here.

        A process that only records another one's rounds must have its memory restored, too.
        """
        return self._remembering.memory if self._chose and self._remembering is not None else ()

    @memory.setter
    def memory(self, memory: tuple[float, ...]) -> None:
        if memory and self._remembering is not None:
            self._remembering.memory, self._chose = memory, True

    def snapshot(self) -> PairSnapshot:
        """Return the state for another process, all but rtt_s and queue, which are observed there."""
        return PairSnapshot(
            seen=self.seen,
            number=self._number,
            previous=self._previous,
            rounds=tuple(self._rounds),
            sums=self._sums,
            memory=self.memory,
            target=self.target.snapshot(),
            drafting=self.drafting.state,
        )

    def adopt(self, other: PairSnapshot) -> None:
        """Take over a state that has seen more rounds of the target, and of the pair; or any while this one has seen
        none."""
        self.target.adopt(other.target)
        if not 0 < self.seen >= other.seen:
            if self._number != other.number:  # the process that has seen more has renumbered it
                self.target.leave(self._number)
                self._number = other.number
            self.seen, self._previous = other.seen, other.previous
            self._rounds, self._sums = deque(other.rounds), other.sums
            self.memory, self.drafting.state = other.memory, other.drafting
