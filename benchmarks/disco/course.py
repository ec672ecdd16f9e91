"""Course of one answer after its first token, second by second, with the decisions that are taken live.

The winner of the race gives tokens at its rate; after each, `policies.race.race` is asked whether it should pause, and
whether the answer should migrate. The target may have been told to take in the prompt and hold it: then it takes in
the answer so far alone, otherwise the prompt as well. All that takes the true time, not the estimated one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from tandem.policies.race.dispatch import Side
from tandem.policies.race.race import Race

ANSWER = 128
"""Tokens: the paper's output limit; all answers are taken to reach it."""
READER = 1 / 0.209
"""Tokens/s: the paper's P99 time between tokens is the reader's own pace."""
SIDES = (Side.SERVER, Side.DEVICE)
"""The order of pairs."""


class Draws(NamedTuple):
    """Times of a request that nobody knows beforehand.

    server_s: the server's time to first token if it begins anew.
    resume_s: the server's time to the next token if it holds the prompt.
    noise: factor on a device's prefill time.
    """

    server_s: float
    resume_s: float
    noise: float


@dataclass(frozen=True, slots=True)
class Pace:
    """Paces of the two endpoints, and a request's draws.

    prefill: of the device, tokens/s.
    decode: of either endpoint, tokens/s.
    """

    prefill: float
    decode: tuple[float, float]
    draws: Draws

    def begin_s(self, side: int, tokens: int) -> float:
        """Return the seconds in which an endpoint takes in that many tokens, and gives one."""
        return self.draws.server_s if side == 0 else self.draws.noise * tokens / self.prefill

    def resume_s(self, side: int, tokens: int) -> float:
        """Return the seconds in which an endpoint that holds the prompt takes in that many tokens, and gives one."""
        if side == 0:
            return self.draws.resume_s
        return self.draws.noise * tokens / self.prefill if tokens else 1 / self.decode[1]


class Course(NamedTuple):
    """Course of an answer after its first token.

    kept: whether the target was to take in the prompt, and hold it.
    sent: tokens that the winner gave; ANSWER if the answer did not migrate.
    delayed: tokens that came later than a steady reader would have reached them.
    stall_s: that reader's wait.
    """

    kept: bool
    sent: int
    delayed: int
    stall_s: float


def course(
    race: Race, prompt: int, source: int, pace: Pace, elapsed_s: float | None, ready_s: float
) -> Course:
    """Return how an answer goes on.

    race: in which nothing has happened.
    source: the winner's place in SIDES.
    elapsed_s: for which the loser has been taking in the prompt; None if it has not begun.
    ready_s: after which the loser holds the prompt if it is not stopped; without meaning if it has not begun.
    """
    side, other = SIDES[source], SIDES[1 - source]
    race.took_in(side, prompt)
    race.holds(side)
    if elapsed_s is None:
        race.finish()
        kept = race.prepare(other, 0.0)
        if kept:
            race.took_in(other, prompt + 1)
            ready_s = pace.begin_s(1 - source, prompt + 1)
    else:
        race.took_in(other, prompt)
        race.finish()
        kept = race.keep_loser(other, 0.0, elapsed_s)
    sent, now_s, delayed, stall_s = 1, 0.0, 0, 0.0
    race.delivered(1, now_s)
    while sent < ANSWER:
        next_s = 1 / pace.decode[source]
        rest_s = race.rest_s(side, sent, now_s) if kept else 0.0
        if rest_s > 0.0:
            now_s, next_s = min(now_s + rest_s, max(now_s, ready_s)), pace.resume_s(source, 0)
        if kept and now_s >= ready_s:
            race.holds(other)
        moves = race.hand_over(side, sent, now_s)
        if moves and kept:
            now_s = max(now_s, ready_s) + pace.resume_s(1 - source, sent)
        elif moves:
            now_s += pace.begin_s(1 - source, prompt + sent)
        else:
            now_s += next_s
        behind_s = max(0.0, now_s - sent / READER)
        stall_s = max(stall_s, behind_s)
        if moves:
            caught_up = math.ceil(behind_s / (1 / READER - 1 / pace.decode[1 - source]))
            return Course(kept, sent, delayed + min(caught_up, ANSWER - sent), stall_s)
        delayed += behind_s > 0.0
        sent += 1
        race.delivered(1, now_s)
    return Course(kept, ANSWER, delayed, stall_s)
