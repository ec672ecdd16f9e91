"""A split model's drafter: guesses of the next token, consistent with the acceptance that the workload prescribes.

A guess is a geometric distribution over tokens: the best has probability c, the others (1 − c)·c, (1 − c)²·c and so
on. The right token is drawn from that very distribution, so the drafter is calibrated: of tokens drafted with c, a
share of c is accepted; of the others, the second is right with c again. The workload decides whether the best one is
right (`Request.acceptance`); c is drawn from its posterior, where the prior is c ~ Beta(s, 1), whose mean s/(1 + s) is
the share that is accepted: s, the drafter's sureness, follows from that share. A recorded workload may prescribe c as
well (`Request.confidence`).

After a wrong token a drafter goes on with the same confidence, and all its tokens are wrong.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np

from tandem.simulator.engines.script import TOKEN, Script

WIDTH = 8  # tokens in a guess
LEAST = 1e-9  # distance of probabilities from 0 and from 1
_WRONG = 2**30  # tokens of no model
_RANKS = np.arange(WIDTH)


class Guess(NamedTuple):
    """The likeliest ids and their probabilities, best first."""

    ids: np.ndarray
    probabilities: np.ndarray


class Guesses:
    """Guesses for all requests of a script. seed: of the random numbers."""

    def __init__(self, script: Script, sureness: float, seed: int) -> None:
        self._script, self._sureness, self._seed = script, sureness, seed
        self._chances: dict[int, list[list[float]]] = {}

    def after(self, number: int, output: list[int]) -> Guess:
        """Return the guess that follows this output of a request; deterministic."""
        position, s = len(output), self._sureness
        chances = self._chances_of(number)
        first, second, third = chances[position % len(chances)]
        ids = _WRONG + WIDTH * position + _RANKS
        request = self._script.request(number)
        on_track = position < request.output_tokens and output == list(range(TOKEN, TOKEN + position))
        right = on_track and request.acceptance is not None and bool(request.acceptance[position])
        if request.confidence is not None:
            sure = float(np.clip(request.confidence[position % len(request.confidence)], LEAST, 1 - LEAST))
        elif not on_track:
            sure = third ** (1 / s)
        elif right:
            sure = first ** (1 / (s + 1))  # Beta(s + 1, 1)
        else:
            sure = first ** (1 / s) * second ** (1 / (s + 1))  # Beta(s, 2)
        rank = 0 if right else 1 + int(log(third) / log(1 - sure))
        if on_track and rank < WIDTH:
            ids[rank] = self._script.own(number, position)
        return Guess(ids, sure * (1 - sure) ** _RANKS)

    def _chances_of(self, number: int) -> list[list[float]]:
        chances = self._chances.get(number)
        if chances is None:
            random = np.random.Generator(np.random.PCG64([self._seed, number]))
            drawn = random.random((self._script.request(number).output_tokens + 1, 3))
            chances = self._chances[number] = np.clip(drawn, LEAST, 1 - LEAST).tolist()
        return chances
