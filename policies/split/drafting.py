"""Drafting: whether the device of a split model drafts one more token before the draft is verified.

HAT (Xie et al. 2025), section 3.4. Unlike a window, the length is not known beforehand: it depends on the drafter's
confidence in the tokens so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from tandem.policies.base import Registry
from tandem.policies.estimators.calibration import Calibration
from tandem.policies.estimators.moving_average import moved
from tandem.policies.speculation.arithmetic import MAX_WINDOW

FADE = 0.95  # weight of a device's earlier rounds; HAT's a averages over five, which is too noisy


@dataclass(frozen=True, slots=True)
class DraftState:
    """A draft, before its next token.

    confidences: probability that the drafter gave each of its tokens so far.
    left: tokens that it may still get: the output has a limit, and the model adds a token of its own.
    draft_s: γ, seconds to draft the next token; 0 if it is there already, from parallel drafting.
    token_s: what a token adds to the verification: its hidden state's way up and down, and its share of the batch;
        seconds.
    round_s: seconds of a round without a draft: link, cloud, and the one token that is always sent.
    """

    confidences: tuple[float, ...] = ()
    left: int = MAX_WINDOW
    draft_s: float = 0.0
    token_s: float = 0.0
    round_s: float = 0.0


class DraftRound(NamedTuple):
    """Outcome of a draft. Its round added one token more than were accepted.

    confidences: as in DraftState; empty if nothing was drafted.
    accepted: accepted tokens, from the first on.
    draft_s: seconds that the round waited for drafting; parallel drafting costs nothing.
    seconds: of the whole round.
    """

    confidences: tuple[float, ...]
    accepted: int
    draft_s: float
    seconds: float


class DraftingPolicy(Protocol):
    """Drafting policy of one device, called before each token of a draft and after each round."""

    def go_on(self, state: DraftState) -> bool:
        """Return whether to draft one more token; False if none is left. Changes no state."""
        ...

    def learn(self, done: DraftRound) -> None:
        """Record a round."""
        ...


@runtime_checkable
class Learning(DraftingPolicy, Protocol):
    """A drafting policy with state of its own.

    memory: the whole state; another object of the policy, given it, decides alike from then on.
    """

    memory: tuple[float, ...]


drafting: Registry[DraftingPolicy] = Registry("drafting")


@drafting.register("none")
class NoDraft:
    """Plain U-shaped inference: a token a round."""

    def go_on(self, state: DraftState) -> bool:
        return False

    def learn(self, done: DraftRound) -> None:
        pass


@drafting.register("threshold")
class Threshold:
    """HAT's equation (5): drafts until a token's confidence is below η; that token is the draft's last.

    eta: η.
    most: most tokens of a draft.
    """

    def __init__(self, eta: float = 0.6, most: int = MAX_WINDOW) -> None:
        if not 0.0 <= eta <= 1.0 or most < 1:
            raise ValueError(f"needs 0 ≤ eta ≤ 1 and most ≥ 1, not {eta} and {most}")
        self._eta, self._most = eta, most

    def go_on(self, state: DraftState) -> bool:
        sure = not state.confidences or state.confidences[-1] >= self._eta
        return sure and state.left > 0 and len(state.confidences) < self._most

    def learn(self, done: DraftRound) -> None:
        pass


@drafting.register("expected_gain")
class ExpectedGain:
    """Drafts as long as one more token is expected to pay. Goes beyond HAT, whose η knows no costs.

    Let c_j be the probability that the j-th drafted token is accepted if those before it are. A round with a draft of
    n gives N(n) = 1 + c_1 + c_1·c_2 + … + c_1···c_n tokens and takes T(n) = round_s + n·(draft_s + token_s). Over many
    rounds, tokens a second are E[N]/E[T] (renewal reward), and with ρ the maximum of that, the best rule maximises E[N
    − ρ·T]. One more token adds c_1···c_n·c to N, where c is the expected acceptance of a token not yet drafted. So
    draft it while

        c_1···c_n · c  >  ρ · (draft_s + token_s).

    The left side only falls as the draft grows, so looking one token ahead suffices. ρ is the recent rate of rounds:
    the best rule for it gives more, until it converges (Dinkelbach's iteration). Before the first round it is
    N(n)/T(n) of the draft itself, which carries the fixed cost: the dearer a round, the longer its draft. c_j is the
    drafter's confidence as calibrated by verdicts, c their mean.

    Once drafting has stopped to pay, nothing more is learnt of it: `fallback` around this policy tries again.

    most: most tokens of a draft.
    """

    def __init__(self, most: int = MAX_WINDOW) -> None:
        if most < 1:
            raise ValueError(f"most must be at least 1 token, not {most}")
        self._most = most
        self._accepted = Calibration()
        self._tokens = self._seconds = 0.0  # of rounds, decaying

    def go_on(self, state: DraftState) -> bool:
        drafted = len(state.confidences)
        if state.left <= 0 or drafted >= self._most:
            return False
        chance = expected = 1.0
        for confidence in state.confidences:
            chance *= self._accepted(confidence)
            expected += chance
        cost_s = state.draft_s + state.token_s
        gain = chance * self._accepted.mean
        if self._seconds > 0:
            return gain * self._seconds > self._tokens * cost_s
        return gain * (state.round_s + drafted * cost_s) > expected * cost_s

    def learn(self, done: DraftRound) -> None:
        for at, confidence in enumerate(done.confidences[: done.accepted + 1]):  # later ones were not judged
            self._accepted.note(confidence, at < done.accepted)
        self._tokens = FADE * self._tokens + done.accepted + 1
        self._seconds = FADE * self._seconds + done.seconds

    @property
    def memory(self) -> tuple[float, ...]:
        return (self._tokens, self._seconds, *self._accepted.memory)

    @memory.setter
    def memory(self, memory: tuple[float, ...]) -> None:
        self._tokens, self._seconds, *accepted = memory
        self._accepted.memory = tuple(accepted)


class _Drafts(NamedTuple):
    """Moving averages of a device's drafts: as in DraftRound."""

    drafted: float
    accepted: float
    draft_s: float


@drafting.register("fallback")
class Fallback:
    """Another policy, as long as drafting pays on this device; plain U-shaped inference otherwise.

    A round with a draft takes longer by its drafting and by token_s for each token, and saves a round for each
    accepted one. With moving averages over the device's drafts, it pays while

        draft_s + drafted · token_s  <  accepted · round_s.

    Costs are current: on a link that has become slower, drafting pays again at once. Better acceptance shows only in a
    draft: so one is made every now and then.

    policy, parameters: the policy.
    explore: rounds without a draft after which one is made.
    """

    def __init__(
        self,
        policy: str = "threshold",
        parameters: Mapping[str, object] | None = None,
        explore: int = 16,
    ) -> None:
        if explore < 1:
            raise ValueError(f"explore must be at least 1 round, not {explore}")
        self._policy = drafting.create(policy, **(parameters or {}))
        self._explore = explore
        self._plain = 0  # rounds since the last draft
        self._drafts: _Drafts | None = None

    def go_on(self, state: DraftState) -> bool:
        if state.confidences:
            return self._policy.go_on(state)
        if self._plain >= self._explore:
            return state.left > 0
        return self._pays(state) and self._policy.go_on(state)

    def _pays(self, state: DraftState) -> bool:
        if self._drafts is None:
            return True
        drafted, accepted, draft_s = self._drafts
        return draft_s + drafted * state.token_s < accepted * state.round_s

    def learn(self, done: DraftRound) -> None:
        self._policy.learn(done)
        drafted = len(done.confidences)
        self._plain = 0 if drafted else self._plain + 1
        if drafted:
            # the prior is full acceptance, so that one bad draft decides little
            before = self._drafts or _Drafts(drafted, drafted, done.draft_s)
            after = (drafted, done.accepted, done.draft_s)
            self._drafts = _Drafts(*(moved(old, new, FADE) for old, new in zip(before, after, strict=True)))

    @property
    def memory(self) -> tuple[float, ...]:
        inner = self._policy.memory if isinstance(self._policy, Learning) else ()
        return (self._plain, *(self._drafts or (0.0, 0.0, 0.0)), *inner)

    @memory.setter
    def memory(self, memory: tuple[float, ...]) -> None:
        plain, drafted, accepted, draft_s, *inner = memory
        self._plain = int(plain)
        self._drafts = _Drafts(drafted, accepted, draft_s) if drafted else None
        if isinstance(self._policy, Learning):
            self._policy.memory = tuple(inner)
