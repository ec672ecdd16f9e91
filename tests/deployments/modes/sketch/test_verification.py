"""Verification: every sentence has the sum of its own tokens' log-probabilities, after what was said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tandem.deployments.modes.base import SCORED_AT_ONCE
from tandem.deployments.modes.sketch.verification import Claim, DoubtsByModel, Verification
from tandem.deployments.request.job import Job
from tandem.engine.base import EngineStopped, Sampling, TokenLogprob
from tandem.policies.sketch.doubts import Doubts

pytestmark = pytest.mark.virtual_time
JOB = Job(1, (1, 2, 3), Sampling(adapter="legal"), mode="sketch")
BAD = 99


class Target:
    """Session that finds BAD unlikely. step_s: that it takes for some tokens; tells: whether it has probabilities."""

    def __init__(self, step_s: float = 0.0, tells: bool = True, error: Exception | None = None) -> None:
        self.opened: list[tuple[list[int], Sampling]] = []
        self.is_open = False
        self.closed = 0
        self.judged: list[int] = []
        self._step_s, self._tells, self._error = step_s, tells, error

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> None:
        self.opened.append((list(prompt), sampling))
        self.is_open = True

    async def score(self, position: int, tokens: Sequence[int]) -> list[TokenLogprob]:
        await asyncio.sleep(self._step_s)
        assert position == len(self.judged)
        self.judged += tokens
        if self._error:
            raise self._error
        return [TokenLogprob(-20.0 if token == BAD else -0.01) for token in tokens] if self._tells else []

    async def close(self) -> None:
        self.is_open = False
        self.closed += 1


async def verdicts(target: Any, claims: Sequence[Claim], limit_s: float | None = None) -> tuple[Any, Any]:
    verification = Verification(JOB, DoubtsByModel(Doubts))
    return verification, await verification.doubted(target, [4, 5], claims, limit_s)


async def test_each_sentence_is_judged_by_its_own_tokens() -> None:
    target = Target()
    claims = [Claim("small", [7] * 40), Claim("tiny", [7] * 39 + [BAD]), Claim("small", [7] * 9)]
    verification, doubted = await verdicts(target, claims)
    assert (doubted, verification.over) == ([False, True, False], True)
    ((prompt, sampling),) = target.opened
    assert prompt == [1, 2, 3, 4, 5], "it is judged after what was said"
    assert (sampling.forced, sampling.logprobs, sampling.adapter) == (True, 0, "legal")
    assert sum(len(claim.ids) for claim in claims) > SCORED_AT_ONCE


async def test_nothing_is_read_twice() -> None:
    target, verification = Target(), Verification(JOB, DoubtsByModel(Doubts))
    for n in (2, 1, 0):
        said = [4, *[7] * (2 - n)]
        assert await verification.doubted(target, said, [Claim("small", [7])], None, n) == [False]  # type: ignore[arg-type]
        assert (verification.over, target.closed) == (not n, int(not n)), "its place is free at the end"
    assert (len(target.opened), target.judged) == (1, [7, 7, 7])


@pytest.mark.parametrize(
    "target",
    [Target(step_s=5.0), Target(tells=False), Target(error=EngineStopped("gone"))],
    ids=["late", "tells nothing", "gone"],
)
async def test_a_target_that_cannot_judge_is_asked_no_more(target: Target) -> None:
    verification, doubted = await verdicts(target, [Claim("small", [BAD])], limit_s=1.0)
    assert (doubted, verification.over) == ([], True)
    assert asyncio.get_running_loop().time() <= 1.0


async def test_a_doubt_is_about_the_sentence_that_has_the_token() -> None:
    claims = [Claim("small", [7, 7]), Claim("small", [BAD, 7]), Claim("small", [7, BAD])]
    assert (await verdicts(Target(), claims))[1] == [False, True, True]


async def test_there_is_room_for_twice_what_is_expected_to_come() -> None:
    target: Any = Target()
    await Verification(JOB, DoubtsByModel(Doubts)).doubted(target, [4], [Claim("small", [7, 7])], None, 10)
    ((_, sampling),) = target.opened
    assert sampling.max_tokens == 2 + 2 * 10 + 1, "and for a token of the target's own"
