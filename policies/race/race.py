"""One race of a device and a server over a request: its plan, what it teaches, and when the answer moves on.

Live and simulated races run this same object. It has no clock: whoever calls it says what time it is, in seconds of
any one clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tandem.policies.cost import Costs
from tandem.policies.estimators.step_time import StepTimeModel, StepTimes
from tandem.policies.estimators.windows import Latencies, Lengths, Outputs, Sampled
from tandem.policies.race.budget import Budget
from tandem.policies.race.dispatch import (
    BOTH,
    DEVICE_ONLY,
    NEVER,
    SERVER_ONLY,
    DispatchPolicy,
    DispatchState,
    Side,
    Start,
)
from tandem.policies.race.migration import MigrationPolicy, MigrationState, buffer_tokens
from tandem.policies.reader.quality import Reader

CAUTIOUS = 0.9
"""Quantile of the server's times to first token that a hand-over reckons with."""
STALLED, STALLED_S = 3.0, 1.0
"""An endpoint has stalled that takes this many times as long for a first token as is to be expected of it, and this
many seconds at least."""


def _budgets(share: float) -> dict[Side, Budget]:
    return {side: Budget(share) for side in Side}


@dataclass(slots=True)
class RaceAccount:
    """Whose requests they are.

    dispatch: decides who starts when; may fit something to what it sees.
    migration: decides when an answer moves on; likewise.
    budgets: for either side, should it be the constrained one.
    lengths: of the account's prompts.
    """

    dispatch: DispatchPolicy
    migration: MigrationPolicy
    budgets: dict[Side, Budget] = field(default_factory=lambda: _budgets(0.5))
    lengths: Lengths = field(default_factory=lambda: Lengths(kept=1024))


class RaceSnapshot(NamedTuple):
    """A RaceHistory on its way to another process; each part says what it leaves out."""

    ttft: Sampled
    prefill: StepTimes
    outputs: Sampled


@dataclass(slots=True)
class RaceHistory:
    """What is known of the two endpoints.

    ttft: F(t), the server's time to first token.
    prefill: the device's time to first token, k·l + c, of l tokens that it has to take in.
    outputs: how long answers are.
    """

    ttft: Latencies
    prefill: StepTimeModel
    outputs: Outputs

    def snapshot(self) -> RaceSnapshot:
        """What has been seen, for another process."""
        return RaceSnapshot(self.ttft.snapshot(), self.prefill.snapshot(), self.outputs.snapshot())

    def adopt(self, other: RaceSnapshot) -> None:
        """Take over those parts that have seen more than these have."""
        self.ttft.adopt(other.ttft)
        self.prefill.adopt(other.prefill)
        self.outputs.adopt(other.outputs)


class Race:
    """Called by a mode, which tells it what happens and asks it what to do.

    prompt: its tokens.
    max_tokens: tokens of the answer at most.
    reader_rate: tokens/s; 0: nobody reads along.
    costs: of the two endpoints.
    account: whose request it is.
    history: what is known of the two endpoints.
    coin: uniform in [0, 1), for what is decided by chance.
    share: a budget of the request's own; None: the account's.

    start: who starts when, the constrained endpoint only where the budget has room for the prompt.
    limit: tokens that the constrained endpoint may take in for it, as long as the other one has not failed; may be set
        before the race is on.
    prices: dollars a token at either endpoint; may be set while the race is on.
    """

    def __init__(
        self,
        prompt: int,
        max_tokens: int,
        reader_rate: float,
        costs: Costs,
        account: RaceAccount,
        history: RaceHistory,
        coin: float,
        share: float | None = None,
    ) -> None:
        self._prompt, self._max_tokens, self._history = prompt, max_tokens, history
        self._constrained = costs.constrained
        self._budget = account.budgets[self._constrained]
        self._migration = account.migration
        self.prices = {Side.SERVER: costs.server, Side.DEVICE: costs.device_usd}
        self._taken_in: dict[Side, int] = {}  # tokens, by those who began
        self._racing: set[Side] = set()  # those who began before anybody gave a token, and still have to
        self._kept: Side | None = None  # the loser that is to hold the prompt
        self._decided = False
        self._reader_rate, self._reader = reader_rate, Reader(reader_rate) if reader_rate else None
        account.lengths.note(prompt)
        state = DispatchState(
            prompt, account.lengths, history.ttft, self._budget.next(share), self._constrained, coin
        )
        self.start = account.dispatch.choose(state)
        self._booking = self._budget.book(prompt, self._spends(), share, self._beyond())
        self.limit = self._booking.limit
        if not self._may_take_in(self._constrained, prompt):
            self.start = self._alone

    def starts(self, sent: int) -> Start:
        """Who starts when, after an answer of so many tokens; NEVER: only if the other one fails or stalls."""
        start = BOTH if sent else self.start  # half an answer is in a hurry
        return start if self.may_start(self._constrained, sent) else self._alone

    def may_start(self, side: Side, sent: int) -> bool:
        """Whether it may take in the prompt and an answer of so many tokens, though the other one has not failed."""
        return self._may_take_in(side, self._prompt + sent)

    def took_in(self, side: Side, tokens: int) -> None:
        """It takes in so many tokens, and will give the one after them.

        To be called as every prefill starts: that of the race itself, of a fail-over and of a hand-over. All of it is
        spent, even if it is stopped on the way.

        tokens: the prompt and the answer so far, but for what the endpoint still holds.
        """
        self._taken_in[side] = self._taken_in.get(side, 0) + tokens
        if not self._decided:
            self._racing.add(side)
        if side is self._kept:
            self._kept = None

    def first_token(self, side: Side, taken_in: int, seconds: float) -> None:
        """It gave a token so many seconds after it had started to take in so many tokens."""
        if side is Side.DEVICE:
            self._history.prefill.note(taken_in, seconds)
        elif side in self._racing:
            self._history.ttft.note(seconds)
        self._racing.discard(side)
        self.finish()

    def stopped(self, side: Side, seconds: float) -> None:
        """It was stopped so many seconds after it had started, without having given a token."""
        if side is Side.SERVER:
            self._history.ttft.note_longer(seconds)
        self._racing.discard(side)
        if side is self._kept:
            self._kept = None

    def finish(self) -> None:
        """The race is decided, as it is with the first token: an endpoint that begins later is not racing."""
        self._decided = True

    def over(self, taken_in: Mapping[Side, int]) -> None:
        """The request has ended, perhaps in another mode after both sides were lost: what was reserved is settled.

        taken_in: tokens that either side has taken in for it, in all.
        """
        side = self._constrained
        self._budget.settle(self._booking, max(taken_in[side], self._taken_in.get(side, 0)))

    def delivered(self, tokens: int, now_s: float) -> None:
        """So many more tokens of the answer are on their way to the reader."""
        if self._reader is not None:
            self._reader.deliver(tokens, now_s)

    def keep_loser(self, side: Side, left: int = 0) -> bool:
        """Whether the side that lost should take in the rest of the prompt and hold it, as the answer will move there.

        A hand-over then takes in no more than what was sent until then, which is B tokens at least, those that the
        reader needs before them (`policies.race.migration.buffer_tokens`). By DiSCo's equation (4) it pays where

            Δc_decode · E[tokens that remain after B] > c_prefill · (B + left).

        Ask once, when the race is decided. If it is to be kept, report its `first_token` when it comes: until then,
        `hand_over` reckons with the time of a whole prefill. Report the hand-over as `took_in(side, sent)`; if the
        prompt cannot be held any longer, report `stopped`.

        left: tokens of the prompt that it would not take in if it were stopped now; 0 where they are paid for anyhow.
        """
        source = _other(side)
        if side not in self._taken_in or self.prices[source].decode <= self.prices[side].decode:
            return False
        sent = 1
        while (buffer := buffer_tokens(self._reader_rate, self._migration_s(side, sent))) > sent:
            if buffer >= self._max_tokens:
                return False
            sent = int(buffer)  # it has to be taken in, too, which takes time
        if not self._may_take_in(side, sent):
            return False
        state = self._state(source, sent + left, sent, self._migration_s(side, sent), float(sent))
        if self._migration.wanted(state):
            self._kept = side
        return side is self._kept

    def hand_over(self, side: Side, sent: int, now_s: float) -> bool:
        """Whether the answer, of so many tokens, should now go from this side to the other."""
        other, reader = _other(side), self._reader
        if self.prices[side].decode <= self.prices[other].decode:
            return False
        known = sent if other is self._kept else self._prompt + sent
        if other is self._constrained and not (other in self._taken_in and self._may_take_in(other, known)):
            return False
        migration_s = self._migration_s(other, self._to_take_in(other, sent))
        ahead = 0.0 if reader is None else reader.buffer(now_s)
        return self._migration.due(self._state(side, known, sent, migration_s, ahead))

    def patience_s(self, side: Side, sent: int) -> float:
        """How long to wait for this side's first token, after an answer of so many, before it counts as stalled."""
        expected_s = self._first_token_s(side, self._to_take_in(side, sent), 0.99)
        return max(STALLED_S, STALLED * expected_s)

    def _state(self, source: Side, known: int, sent: int, migration_s: float, ahead: float) -> MigrationState:
        return MigrationState(
            known=known,
            remaining=self._history.outputs.remaining(sent, self._max_tokens),
            source=self.prices[source],
            target=self.prices[_other(source)],
            migration_s=migration_s,
            reader_rate=self._reader_rate,
            ahead=ahead,
        )

    def _migration_s(self, target: Side, tokens: int) -> float:
        """t_m; 0 where nobody reads along, as it does not matter then."""
        return self._first_token_s(target, tokens, CAUTIOUS) if self._reader_rate else 0.0

    def _to_take_in(self, side: Side, sent: int) -> int:
        """Tokens, until it can give the one after an answer of so many."""
        holds_prompt = side is self._kept and side not in self._racing
        return sent if holds_prompt else self._prompt + sent

    @property
    def _alone(self) -> Start:
        """The endpoint that no budget limits starts."""
        return SERVER_ONLY if self._constrained is Side.DEVICE else DEVICE_ONLY

    def _spends(self) -> bool:
        """Whether the constrained endpoint is to take part."""
        start = self.start
        return (start.server_s if self._constrained is Side.SERVER else start.device_s) < NEVER

    def _beyond(self) -> int:
        """Tokens of the answer that a hand-over to the constrained endpoint takes in, at most as many as an answer
        probably has; 0 where it decodes no more cheaply."""
        side = self._constrained
        if self.prices[side].decode >= self.prices[_other(side)].decode:
            return 0
        return math.ceil(self._history.outputs.remaining(0, self._max_tokens))

    def _may_take_in(self, side: Side, tokens: int) -> bool:
        return side is not self._constrained or self._taken_in.get(side, 0) + tokens <= self.limit

    def _first_token_s(self, side: Side, tokens: int, quantile: float) -> float:
        """Seconds until it has taken in so many tokens and given one; infinite of a server that was never seen."""
        if side is Side.DEVICE:
            return self._history.prefill.step_s(tokens)
        return self._history.ttft.quantile(quantile)


def _other(side: Side) -> Side:
    return Side.DEVICE if side is Side.SERVER else Side.SERVER
