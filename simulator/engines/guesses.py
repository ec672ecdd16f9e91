"""What the drafter of a split model thinks of the next token, in a way that agrees with what turns out to be right.

A guess is a distribution over tokens whose best has the probability c and the others (1 − c)·c, (1 − c)²·c and so on:
the geometric one. Which of them is right is drawn from that very distribution, so the drafter is calibrated: of tokens
drafted with c, a share of c is accepted; of the others, the second is right with c again. Whether the best one is right
the workload says (`Request.acceptance`); c is drawn from what remains possible then, where before it was known
c ~ Beta(s, 1), whose mean s/(1 + s) is the share that is accepted: s, the drafter's sureness, follows from that share.
A workload that was recorded may say c as well (`Request.confidence`).

After a wrong token a drafter goes on as sure as ever, and nothing that it says is right.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np

from tandem.simulator.engines.script import TOKEN, Script

WIDTH = 8  # tokens that a guess names
LEAST = 1e-9  # that a probability is from 0 and from 1
_WRONG = 2**30  # tokens that nobody says
_RANKS = np.arange(WIDTH)


class Guess(NamedTuple):
    """The likeliest ids and their probabilities, best first."""

    ids: np.ndarray
    probabilities: np.ndarray


class Guesses:
    """Of all requests of a script. seed: of what is drawn."""

    def __init__(self, script: Script, sureness: float, seed: int) -> None:
        self._script, self._sureness, self._seed = script, sureness, seed
        self._chances: dict[int, list[list[float]]] = {}

    def after(self, number: int, output: list[int]) -> Guess:
        """What is thought to follow this output of a request. The same at any time."""
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
