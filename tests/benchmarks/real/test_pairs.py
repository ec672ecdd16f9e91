"""Rounds of a pair are counted as they were."""

from __future__ import annotations

import pytest

from tandem.benchmarks.real.pairs import Rounds, play
from tandem.engine.base import Sampling
from tandem.engine.null.engine import NullEngine


@pytest.mark.parametrize(
    ("mistake_every", "counts"),
    [
        (0, Rounds(rounds=4, drafted=16, judged=16, accepted=16, tokens=20)),
        (1, Rounds(rounds=20, drafted=74, judged=20, accepted=0, tokens=20)),
    ],
)
async def test_rounds_are_counted(mistake_every: int, counts: Rounds) -> None:
    seen, target, drafter = Rounds(), NullEngine(), NullEngine(mistake_every=mistake_every)
    sampling = Sampling(max_tokens=20)
    await play(target, drafter, [20, 21], (sampling, sampling), 4, seen)
    assert seen == counts
    assert (await target.stats()).sessions == (await drafter.stats()).sessions == 0
