"""One race of a device and a server over a request: its plan, what it learns, and when the answer migrates.

Live and simulated races use this same object. It has no clock: callers pass the time, in seconds of any one clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tandem.policies.estimators.step_time import StepTimeModel, StepTimes
from tandem.policies.estimators.windows import Latencies, Lengths, Outputs, Sampled
from tandem.policies.race.budget import Budget
from tandem.policies.race.costs import Costs
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
"""Quantile of the server's times that a migration assumes."""
SLOWER = 1.1
"""A device is expected to hold the prompt after this many times what it mostly takes."""
STALLED, STALLED_S = 3.0, 1.0
"""An endpoint has stalled that takes this many times as long for a first token as is to be expected of it, and this
many seconds at least."""


def _budgets(share: float) -> dict[Side, Budget]:
    return {side: Budget(share) for side in Side}


@dataclass(slots=True)
class RaceAccount:
    """The account of the requests.

    dispatch: decides when endpoints start; may fit its plan to samples.
    migration: decides when an answer migrates.
    budgets: one for each side, in case it is the constrained one.
    lengths: of the account's prompts.
    """

    dispatch: DispatchPolicy
    migration: MigrationPolicy
    budgets: dict[Side, Budget] = field(default_factory=lambda: _budgets(0.5))
    lengths: Lengths = field(default_factory=lambda: Lengths(kept=1024))


class RaceSnapshot(NamedTuple):
    """State of a RaceHistory, to send to another process."""

    ttft: Sampled
    prefill: StepTimes
    outputs: Sampled
    resumed: Sampled


@dataclass(slots=True)
class RaceHistory:
    """Statistics of the two endpoints.

    ttft: F(t), the server's time to first token.
    prefill: the device's time to first token, k·l + c for l tokens to prefill.
    outputs: answer lengths.
    resumed: the server's time to the next token if it holds the prompt and is asked to go on.
    """

    ttft: Latencies
    prefill: StepTimeModel
    outputs: Outputs
    resumed: Latencies = field(default_factory=Latencies)

    def snapshot(self) -> RaceSnapshot:
        return RaceSnapshot(
            self.ttft.snapshot(), self.prefill.snapshot(), self.outputs.snapshot(), self.resumed.snapshot()
        )

    def adopt(self, other: RaceSnapshot) -> None:
        """Take over the parts of another history that have seen more samples."""
        self.ttft.adopt(other.ttft)
        self.prefill.adopt(other.prefill)
        self.outputs.adopt(other.outputs)
        self.resumed.adopt(other.resumed)


class RaceRequest(NamedTuple):
    """The request that is raced for.

    prompt: prompt length, tokens.
    max_tokens: most tokens of the answer.
    reader_rate: tokens/s; 0 without a reader.
    share: its own budget; None for the account's.
    """

    prompt: int
    max_tokens: int
    reader_rate: float = 0.0
    share: float | None = None


class Race:
    """One race, driven by a mode that reports events and asks for decisions.

    costs: of the two endpoints.
    account: account of the request.
    history: statistics of the two endpoints.
    coin: uniform in [0, 1), for random choices.

    start: when each endpoint starts; the constrained one only if the budget has room for the prompt.
    limit: tokens that the constrained endpoint may take in while the other one has not failed; may be set before the
        race begins.
    prices: dollars per token at either endpoint; may be set during the race.
    """

    def __init__(
        self, request: RaceRequest, costs: Costs, account: RaceAccount, history: RaceHistory, coin: float
    ) -> None:
        prompt, max_tokens, reader_rate, share = request
        self._prompt, self._max_tokens, self._history = prompt, max_tokens, history
        self._constrained = costs.constrained
        self._budget = account.budgets[self._constrained]
        self._migration = account.migration
        self.prices = {Side.SERVER: costs.server, Side.DEVICE: costs.device_usd}
        self._taken_in: dict[Side, int] = {}  # tokens, by the endpoints that began
        self._taking_in: set[Side] = set()  # have begun, and given no token since
        self._racing: set[Side] = set()  # those of them that began before the first token
        self._kept: Side | None = None  # takes in the prompt, or holds it, to go on with the answer
        self._ready_s = 0.0  # when it is expected to hold the prompt
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
        """Return when each endpoint starts, after an answer of `sent` tokens; NEVER: only if the other one fails or
        stalls."""
        start = BOTH if sent else self.start  # a begun answer has a waiting reader
        return start if self.may_start(self._constrained, sent) else self._alone

    def may_start(self, side: Side, sent: int) -> bool:
        """Return whether an endpoint may prefill the prompt and `sent` tokens though the other one has not failed."""
        return self._may_take_in(side, self._prompt + sent)

    def took_in(self, side: Side, tokens: int) -> None:
        """Record that an endpoint begins a prefill of `tokens` and will give the token after them.

        Call it as every prefill starts, for the race, a fail-over or a migration. All of it counts as spent, even if
        it is stopped on the way.

        tokens: prompt and answer so far, less what the endpoint still holds.
        """
        self._taken_in[side] = self._taken_in.get(side, 0) + tokens
        if not self._decided:
            self._racing.add(side)
        if side is self._kept and side not in self._taking_in:
            self._kept = None
        self._taking_in.add(side)

    def first_token(self, side: Side, taken_in: int, seconds: float) -> None:
        """Record an endpoint's first token, `seconds` after it began to prefill `taken_in` tokens."""
        if side is Side.DEVICE:
            self._history.prefill.note(taken_in, seconds)
        elif side in self._racing:
            self._history.ttft.note(seconds)
        self.holds(side)
        self.finish()

    def holds(self, side: Side) -> None:
        """Record that a side has taken in all that it was to."""
        self._taking_in.discard(side)
        self._racing.discard(side)

    def resumed(self, side: Side, taken_in: int, seconds: float) -> None:
        """Record the next token of an endpoint that held the prompt and took in `taken_in` tokens to go on, `seconds`
        after it was asked to."""
        if side is Side.SERVER:
            self._history.resumed.note(seconds)
        else:
            self._history.prefill.note(taken_in, seconds)
        self.holds(side)

    def stopped(self, side: Side, seconds: float) -> None:
        """Record that an endpoint was stopped `seconds` after it began, before its first token."""
        if side is Side.SERVER:
            self._history.ttft.note_longer(seconds)
        self.holds(side)
        if side is self._kept:
            self._kept = None

    def finish(self) -> None:
        """Record that the race is decided, with the first token: an endpoint that begins later is not racing."""
        self._decided = True

    def over(self, taken_in: Mapping[Side, int]) -> None:
        """Settle the budget when the request has ended, perhaps in another mode after both sides failed.

        taken_in: all tokens that either side has taken in for it.
        """
        side = self._constrained
        self._budget.settle(self._booking, max(taken_in[side], self._taken_in.get(side, 0)))

    def delivered(self, tokens: int, now_s: float) -> None:
        """Record that `tokens` more tokens of the answer are sent to the reader."""
        if self._reader is not None:
            self._reader.deliver(tokens, now_s)

    def keep_loser(self, side: Side, now_s: float, elapsed_s: float = 0.0, left: int = 0) -> bool:
        """Return whether the side that lost should finish its prefill and hold it, as the answer will migrate there.

        A migration then prefills only what was sent until then, at least the B tokens that the reader needs meanwhile
        (`policies.race.migration.buffer_tokens`). By DiSCo's equation (4) it pays if

            Δc_decode · E[tokens that remain after B] > c_prefill · (B + left).

        Call it once, when the race is decided. If the loser is kept, report its `first_token` when it comes. Report the
        migration as `took_in(side, sent)`; if the prompt can no longer be held, report `stopped`.

        elapsed_s: time for which it has been taking in the prompt.
        left: tokens of the prompt that it would not take in if it were stopped now; 0 if they are paid for anyhow.
        """
        return side in self._taken_in and self._keep(side, left, now_s, elapsed_s)

    def prepare(self, side: Side, now_s: float) -> bool:
        """Return whether a side that did not take part in the race should take in the prompt now, and hold it, while
        the reader has what the other one gives.

        The prompt costs as much as with the migration, which then needs a smaller buffer. Call it once, when the race
        is decided, and report `took_in` and what follows as for a loser that is kept.
        """
        began = side in self._taken_in or side is self._constrained
        if self._reader is None or began or not self._migration.prepares:
            return False
        if self._keep(side, self._prompt, now_s, 0.0):
            self._taking_in.add(side)
        return side is self._kept

    def rest_s(self, side: Side, sent: int, now_s: float) -> float:
        """Return the seconds for which this side may pause after `sent` tokens, as the answer migrates once the other
        one holds the prompt; 0: it must go on.

        If the other one is expected to be ready before the reader has read all, this side may pause until then.
        Otherwise, or where that has turned out wrong, the pause ends early enough for it to go on in time, and for the
        answer to migrate after its next token.
        """
        other, reader = _other(side), self._reader
        if reader is None or other is not self._kept or other not in self._taking_in:
            return 0.0
        unread_s, migration_s = reader.dry_s(now_s), self._resume_s(other, sent)
        enough = reader.rate * migration_s
        if not self._migration.prepares or not self._migration.due(
            self._state(side, sent, sent, migration_s, enough)
        ):
            return 0.0
        left_s = self._ready_s - now_s
        if left_s > 0.0 and left_s + migration_s <= unread_s:
            return unread_s
        resume_s = self._resume_s(side, 1)
        rest_s = unread_s - migration_s - resume_s
        return rest_s if rest_s >= resume_s else 0.0  # a shorter one is not worth the way back

    def hand_over(self, side: Side, sent: int, now_s: float) -> bool:
        """Return whether an answer of `sent` tokens should now migrate from this side to the other.

        A policy that prepares has no reader wait for a prompt that is being taken in.
        """
        other, reader = _other(side), self._reader
        if self.prices[side].decode <= self.prices[other].decode:
            return False
        kept, taking_in = other is self._kept, other in self._taking_in
        if kept and taking_in and reader is not None and self._migration.prepares:
            return False
        known = sent if kept else self._prompt + sent
        if other is self._constrained and not (other in self._taken_in and self._may_take_in(other, known)):
            return False
        migration_s, ahead = 0.0, 0.0
        if reader is not None:
            ahead = reader.buffer(now_s)
            migration_s = (
                self._resume_s(other, sent)
                if kept and not taking_in
                else self._first_token_s(other, self._prompt + sent, CAUTIOUS)
            )
        return self._migration.due(self._state(side, known, sent, migration_s, ahead))

    def patience_s(self, side: Side, sent: int) -> float:
        """Return the seconds to wait for this side's first token, after `sent` tokens, before it counts as stalled."""
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

    def _keep(self, side: Side, left: int, now_s: float, elapsed_s: float) -> bool:
        """Return whether a side should take in the `left` tokens that it lacks of the prompt, and hold it."""
        source, rate = _other(side), self._reader_rate
        if self.prices[source].decode <= self.prices[side].decode:
            return False
        ready_s = self._remaining_s(side, elapsed_s)
        sent, migration_s = 1, 0.0
        while rate and (buffer := buffer_tokens(rate, migration_s := self._resume_s(side, sent))) > sent:
            if buffer >= self._max_tokens:
                return False
            sent = int(buffer)  # prefilling these takes time, too
        known = sent if side in self._taken_in else self._prompt + sent
        if not self._may_take_in(side, known):
            return False
        if self._migration.wanted(self._state(source, sent + left, sent, migration_s, float(sent))):
            self._kept, self._ready_s = side, now_s + ready_s
        return side is self._kept

    def _remaining_s(self, side: Side, elapsed_s: float) -> float:
        """Return the seconds until a side holds the prompt that it has been taking in for `elapsed_s`."""
        if side is Side.DEVICE:
            return max(0.0, SLOWER * self._history.prefill.step_s(self._prompt) - elapsed_s)
        ttft = self._history.ttft
        return ttft.quantile(1.0 - (1.0 - CAUTIOUS) * (1.0 - ttft.cdf(elapsed_s))) - elapsed_s

    def _resume_s(self, side: Side, tokens: int) -> float:
        """Return the seconds in which a side that holds the prompt takes in `tokens` and gives one."""
        if side is Side.DEVICE:
            return self._history.prefill.step_s(tokens)
        known = self._history.resumed if len(self._history.resumed) else self._history.ttft
        return known.quantile(CAUTIOUS)

    def _to_take_in(self, side: Side, sent: int) -> int:
        """Return the tokens to prefill before a side can give the one after `sent` tokens."""
        holds_prompt = side is self._kept and side not in self._taking_in
        return sent if holds_prompt else self._prompt + sent

    @property
    def _alone(self) -> Start:
        """Delays with which only the unconstrained endpoint starts."""
        return SERVER_ONLY if self._constrained is Side.DEVICE else DEVICE_ONLY

    def _spends(self) -> bool:
        """Return whether the constrained endpoint takes part."""
        start = self.start
        return (start.server_s if self._constrained is Side.SERVER else start.device_s) < NEVER

    def _beyond(self) -> int:
        """Return the answer tokens that a migration to the constrained endpoint would prefill, at most the expected
        answer length; 0 if it decodes no more cheaply."""
        side = self._constrained
        if self.prices[side].decode >= self.prices[_other(side)].decode:
            return 0
        return math.ceil(self._history.outputs.remaining(0, self._max_tokens))

    def _may_take_in(self, side: Side, tokens: int) -> bool:
        return side is not self._constrained or self._taken_in.get(side, 0) + tokens <= self.limit

    def _first_token_s(self, side: Side, tokens: int, quantile: float) -> float:
        """Return the seconds to prefill `tokens` and give one; infinite for a server without samples."""
        if side is Side.DEVICE:
            return self._history.prefill.step_s(tokens)
        return self._history.ttft.quantile(quantile)


def _other(side: Side) -> Side:
    return Side.DEVICE if side is Side.SERVER else Side.SERVER
