"""One race of a device and a server over a request: its plan, what it teaches, and when the answer moves on.

The live plan and the simulated one run this same object. It has no clock: who calls says what time it is, in
seconds of any one clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.budget import Budget
from policies.cost import Costs
from policies.dispatch import NEVER, DispatchPolicy, DispatchState, Side
from policies.migration import MigrationPolicy, MigrationState
from policies.pace import Pace
from policies.quality import Reader
from policies.samples import Latencies, Lengths, Outputs

CAUTIOUS = 0.9
"""Quantile of the server's times to first token that a hand-over reckons with."""
STALLED, STALLED_S = 3.0, 1.0
"""Whoever takes so many times as long for a first token as is to be expected of it, and so many seconds at least, has
stalled."""


def _budgets(share: float) -> dict[Side, Budget]:
    return {side: Budget(share) for side in Side}


@dataclass(slots=True)
class Payer:
    """Whose requests they are: lengths of the prompts, and a budget for either side that may be the constrained one.
    dispatch, migration: policies, which may fit something to what they see."""

    dispatch: DispatchPolicy
    migration: MigrationPolicy
    budgets: dict[Side, Budget] = field(default_factory=lambda: _budgets(0.5))
    lengths: Lengths = field(default_factory=lambda: Lengths(kept=1024))


@dataclass(slots=True)
class Known:
    """What is known of two rivals. ttft: F(t), the server's time to first token; pace: the device's, k·l + c, of l
    tokens that it has to take in; outputs: how long answers are."""

    ttft: Latencies
    pace: Pace
    outputs: Outputs


class Contest:
    """prompt, most: tokens of the prompt, and of the answer at most. reader_rate: tokens/s, 0: nobody reads along.
    share: a budget of the request's own. coin: uniform in [0, 1).

    start: who starts when.
    """

    def __init__(
        self,
        prompt: int,
        most: int,
        reader_rate: float,
        costs: Costs,
        payer: Payer,
        known: Known,
        coin: float,
        share: float | None = None,
    ) -> None:
        self._prompt, self._most, self._known = prompt, most, known
        self._constrained = costs.constrained
        self._budget = payer.budgets[self._constrained]
        self._migration = payer.migration
        self._prices = {Side.SERVER: costs.server, Side.DEVICE: costs.device_usd}
        self._begun: set[Side] = set()
        self._decided = False
        self._reader = Reader(reader_rate) if reader_rate else None
        payer.lengths.note(prompt)
        state = DispatchState(
            prompt, payer.lengths, known.ttft, self._budget.next(share), self._constrained, coin
        )
        self.start = payer.dispatch.choose(state)
        self._booking = self._budget.book(prompt, self._likely(), share)

    def began(self, side: Side) -> None:
        """It starts to take in the prompt."""
        self._begun.add(side)

    def first_token(self, side: Side, taken_in: int, seconds: float) -> None:
        """It gave a token so long after it started, with so many to take in."""
        if side is Side.DEVICE:
            self._known.pace.note(taken_in, seconds)
        elif not self._decided:
            self._known.ttft.note(seconds)
        if not self._decided:  # the race is over: what it spent of the budget is known
            self._decided = True
            self._budget.settle(self._booking, self._constrained in self._begun)

    def stopped(self, side: Side, seconds: float) -> None:
        """It was stopped so long after it started, without having given a token."""
        if side is Side.SERVER:
            self._known.ttft.note_longer(seconds)

    def delivered(self, tokens: int, now_s: float) -> None:
        """So many more tokens of the answer are on their way to the reader."""
        if self._reader is not None:
            self._reader.deliver(tokens, now_s)

    def hand_over(self, side: Side, sent: int, now_s: float) -> bool:
        """Whether the answer, of so many tokens, should now go from this side to the other."""
        other = Side.DEVICE if side is Side.SERVER else Side.SERVER
        if self._prices[side].decode <= self._prices[other].decode:
            return False
        if other is self._constrained and other not in self._begun:
            return False  # its budget was not asked for this prompt
        taken_in, reader, known = self._prompt + sent, self._reader, self._known
        # where nobody reads along it does not matter how long it takes
        migration_s = 0.0 if reader is None else self._first_token_s(other, taken_in, CAUTIOUS)
        state = MigrationState(
            known=taken_in,
            remaining=known.outputs.remaining(sent, self._most),
            source=self._prices[side],
            target=self._prices[other],
            migration_s=migration_s,
            reader_rate=0.0 if reader is None else reader.rate,
            ahead=0.0 if reader is None else reader.buffer(now_s),
        )
        return self._migration.due(state)

    def patience_s(self, side: Side, sent: int) -> float:
        """How long to wait for this side's first token, after an answer of so many, before the other is asked."""
        return max(STALLED_S, STALLED * self._first_token_s(side, self._prompt + sent, 0.99))

    def _likely(self) -> float:
        """How likely the constrained endpoint takes the prompt in: if it starts before the other one has a token."""
        if self._constrained is Side.SERVER:
            return float(self.start.server_s == 0.0)
        wait_s = self.start.device_s
        return float(wait_s == 0.0) if wait_s in (0.0, NEVER) else 1.0 - self._known.ttft.cdf(wait_s)

    def _first_token_s(self, side: Side, taken_in: int, quantile: float) -> float:
        """Infinite of a server that has never been seen."""
        if side is Side.DEVICE:
            return self._known.pace.step_s(taken_in)
        return self._known.ttft.quantile(quantile)
