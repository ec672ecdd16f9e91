"""Cost of noise on uploaded hidden states for the device that adds it, with the parts that serve.

The device drafts from its own states; the middle is given noisy ones, as float16. So drafts stay as they were, and
only their verdicts change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.benchmarks import report
from tandem.engine import base
from tandem.engine.split.hidden_states import pack, unpack
from tandem.training.adapter.evaluate import Drafter, Parts, Rounds, opened

ETA = 0.6
"""Confidence with which a draft ends, HAT's."""


class Price(NamedTuple):
    """Price of an amount of noise.

    acceptance: share of the answers' tokens that the adapter would have drafted.
    accepted: accepted drafts per round.
    exact: share of the whole model's tokens that the answers have in the same places.
    begun: share of them before the first difference.
    """

    acceptance: float
    accepted: float
    exact: float
    begun: float


def noisy(hidden: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise of this share of each state's root mean square."""
    size = hidden.square().mean(-1, keepdim=True).sqrt()
    return hidden + noise * size * torch.randn(hidden.shape, generator=generator)


async def prices(
    model: Path,
    first: int,
    adapter: Path,
    prompts: Sequence[list[int]],
    longest: int,
    noises: Sequence[float],
) -> dict[float, Price]:
    """Return prices by noise, of greedy answers to prompts. longest: most tokens of either."""
    drafter = Drafter(model, first, adapter)
    async with opened(model, first, adapter, longest) as parts:
        whole = [(await parts.answer(prompt, ETA))[0] for prompt in prompts]
        return {
            noise: await _price(replace(parts, sent=_disturbed(noise)), drafter, prompts, whole)
            for noise in report.progress(noises, f"answers, m = {first}")
        }


async def _price(
    parts: Parts, drafter: Drafter, prompts: Sequence[list[int]], whole: Sequence[list[int]]
) -> Price:
    answers, rounds = list[list[int]](), Rounds()
    for prompt in prompts:  # one after the other: each is given the same noise whenever this runs
        ids, sums = await parts.answer(prompt, ETA)
        answers.append(ids)
        rounds.add(sums)
    agreed = [drafter.agreed(prompt, ids) for prompt, ids in zip(prompts, answers, strict=True)]
    same = [
        [a == b for a, b in zip(ids, right, strict=False)] for ids, right in zip(answers, whole, strict=True)
    ]
    tokens = sum(map(len, whole))
    return Price(
        acceptance=fmean(each for answer in agreed for each in answer),
        accepted=rounds.accepted / rounds.rounds,
        exact=sum(map(sum, same)) / tokens,
        begun=sum(len(list(takewhile(bool, answer))) for answer in same) / tokens,
    )


def _disturbed(noise: float) -> Callable[[base.Tensor], base.Tensor]:
    """Return a function that adds noise to hidden states."""
    generator = torch.Generator().manual_seed(0)

    def sent(hidden: base.Tensor) -> base.Tensor:
        states = torch.from_numpy(unpack(hidden, hidden.shape[1]).copy())
        return pack(noisy(states, noise, generator).numpy(), "float16")

    return sent
