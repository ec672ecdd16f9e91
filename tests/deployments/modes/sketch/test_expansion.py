"""An expansion's questions: what it asks of places, and with which sampling its sentences are written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock, patch

import pytest

from tandem.deployments.modes.sketch.expansion import (
    CHECKED,
    LEAST_TOKENS,
    LONGEST,
    OTHER_TEMPERATURE,
    UNSEEN_RATE,
    Expansion,
    Written,
)
from tandem.deployments.modes.sketch.mode import Sketched
from tandem.deployments.modes.sketch.questions import Expanders, Place, PlaceRequest, SketchPlan
from tandem.deployments.modes.sketch.verification import DoubtsByModel, Verification
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import Job
from tandem.engine.base import Sampling
from tandem.engine.sketch.base import Sketch, SketchFormat
from tandem.policies.sketch.doubts import Doubts
from tests.virtual import in_virtual_time

SAMPLING = Sampling(max_tokens=400, seed=100, stop=("x",), stop_tokens=(3,), temperature=0.0)
SKETCH = Sketch(expected=80, notes=((1, 2), (3, 4, 5, 6), (7, 8)))
TARGET = EndpointInfo("target", "here:1", "target", vocabulary="v")
PHONE = EndpointInfo("phone", "here:2", "phone", vocabulary="v", device=True)
STRANGER = replace(PHONE, vocabulary="another")


def expansion(
    plan: SketchPlan, sampling: Sampling = SAMPLING, place: Place | None = None
) -> tuple[Expansion, AsyncMock]:
    format_ = Mock(
        SketchFormat,
        text=Mock(side_effect=lambda note: f"note {note}"),
        sentence=Mock(side_effect=lambda question, ids, number: ids),
    )
    asked = AsyncMock(return_value=place)
    made = Expansion(
        Job(11, (1, 2, 3), sampling, mode="sketch", device="phone"),
        SKETCH,
        plan,
        format_,
        Mock(Expanders, place=asked),
        Sketched(),
        DoubtsByModel(Doubts),
    )
    made._vocabulary = "v"
    return made, asked


@in_virtual_time
async def test_a_sentence_has_a_sampling_of_its_own() -> None:
    """80 tokens of three sentences are 26 each; a sentence may have four times as many."""
    one, _ = expansion(SketchPlan(candidates=1))
    sampling = one._sampling(1, 0, PHONE)
    assert (sampling.max_tokens, sampling.seed, sampling.reader_rate) == (
        round(LONGEST * 26),
        101,
        UNSEEN_RATE,
    )
    assert (sampling.stop, sampling.stop_tokens, sampling.temperature) == ((), (), 0.0)
    assert sampling.logprobs == -1, "there is nothing to compare"


@in_virtual_time
async def test_short_sentences_have_some_room() -> None:
    few, _ = expansion(SketchPlan())
    few._sentence_tokens = 2
    assert few._sampling(0, 0, PHONE).max_tokens == LEAST_TOKENS


@in_virtual_time
async def test_further_candidates_differ() -> None:
    two, _ = expansion(SketchPlan(candidates=2))
    samplings = [two._sampling(i, number, PHONE) for i in range(3) for number in range(2)]
    assert [each.seed for each in samplings] == [100, 101, 102, 103, 104, 105]
    assert [each.temperature for each in samplings] == [0.0, OTHER_TEMPERATURE] * 3
    assert {each.logprobs for each in samplings} == {0}
    assert two._sampling(0, 0, STRANGER).logprobs == -1, "they do not translate"
    warm, _ = expansion(SketchPlan(candidates=2), Sampling(temperature=1.25))
    assert [warm._sampling(0, number, PHONE).temperature for number in range(2)] == [1.25, 1.25]


@in_virtual_time
async def test_a_place_is_asked_for_what_is_missing() -> None:
    plan = SketchPlan(sketch=9, model="small", share=0.25, budget_s=3.0, full_s=8.0, candidates=2)
    made, asked = expansion(plan)
    made._sentences[1].written[0] = Written([1], "text")
    made._lost.append("gone@here:3")
    made._at = {0: "own@here:4", 1: "other@here:5"}
    await made._candidate(0)
    (wanted,) = asked.await_args.args  # type: ignore[union-attr]
    assert wanted == PlaceRequest(
        id=wanted.id,
        request=11,
        tokens=2 * 26,
        dry_s=0.0,
        wait_s=8.0,
        lost=("gone@here:3",),
        beside=("other@here:5",),
        model="small",
        share=0.25,
        budget_s=3.0,
        devices=("phone",),
    )
    await made._candidate(1)
    (wanted,) = asked.await_args.args  # type: ignore[union-attr]
    assert (wanted.model, wanted.tokens) == (None, 3 * 26), "further candidates are any model's"


@in_virtual_time
async def test_sentences_share_a_place_as_far_as_there_is_time() -> None:
    """78 tokens at 0.1 s each; the sentences have a quarter, a half and a quarter of them. The shortest and the longest
    take 5.85 s one after the other, all three 7.8 s."""
    sequences = Place(PHONE, 3, token_s=0.1)
    for within_s, groups in (
        (5.8, [[0], [1], [2]]),
        (5.9, [[0, 1], [2]]),
        (7.7, [[0, 1], [2]]),
        (7.9, [[0, 1, 2]]),
    ):
        made, _ = expansion(SketchPlan(within_s=within_s))
        assert made._groups(sequences, [0, 1, 2]) == groups


@pytest.mark.parametrize(("best", "scores"), [("likely", (-1.0, -90.0)), ("close", (None, -90.0))])
@in_virtual_time
async def test_probabilities_count_only_if_all_are_known(
    best: str, scores: tuple[float | None, float]
) -> None:
    made, _ = expansion(SketchPlan(candidates=2))
    sentence = made._sentences[0]
    sentence.note = "the sun gives light"
    sentence.written = {
        0: Written([1] * 26, "likely but of something else", scores[0]),
        1: Written([1] * 26, "the sun shines close", scores[1]),
        2: None,
    }
    chosen = made._best(sentence)
    assert chosen is not None
    assert best in chosen.text


@in_virtual_time
async def test_an_expansion_that_is_behind_is_the_targets() -> None:
    """A device gives no sentence in half of the time that the target would take for them."""
    made, _ = expansion(SketchPlan(budget_s=6.0, full_s=10.0, bounded=True), place=Place(PHONE, 1))
    loop = asyncio.get_running_loop()
    freed = made._expanders.free

    async def never(*_: object) -> tuple[Written, int]:
        await asyncio.sleep(1e6)
        raise AssertionError

    with patch.object(Expansion, "_written", side_effect=never):
        async with made.at(MagicMock()):
            assert await made.next() is None
            assert (made.given_up, loop.time()) == (True, pytest.approx(CHECKED * 6.0, abs=0.01))
    (report,) = freed.call_args.args  # type: ignore[attr-defined]
    assert report.late


@in_virtual_time
async def test_one_that_keeps_up_is_waited_for() -> None:
    """A third after 2 s, two thirds after 4 s: it will be there after 6 s, the target after 4 + 10/3."""
    made, _ = expansion(SketchPlan(budget_s=5.0, full_s=10.0, bounded=True), place=Place(PHONE, 1))

    async def written(session: object, i: int, *_: object) -> tuple[Written, int]:
        await asyncio.sleep(2.0)
        return Written([1], f"text {i}"), 1

    with patch.object(Expansion, "_written", side_effect=written):
        async with made.at(MagicMock()):
            while not made.whole:
                assert await made.next() is not None
    assert asyncio.get_running_loop().time() == pytest.approx(6.0, abs=0.1)


def telling(doubted: Sequence[bool], took_s: float = 0.0) -> Any:
    """Return a target's verdicts on sentences, as `Verification.doubted`."""

    async def verdicts(
        self: Verification,
        target: object,
        said: object,
        claims: Sequence[object],
        limit_s: float | None,
        following: int,
    ) -> list[bool]:
        if limit_s is not None and took_s > limit_s:
            self.over = await asyncio.sleep(limit_s, True)
            return []
        return await asyncio.sleep(took_s, list(doubted[: len(claims)]))

    return patch.object(Verification, "doubted", autospec=True, side_effect=verdicts)


async def said(made: Expansion) -> list[int]:
    """Return all that it says where devices write 1, 2, 3 at once and the target -1, -2, -3, each in a second."""

    async def written(session: Any, i: int, number: int) -> tuple[Written, int]:
        by_target = session.endpoint is TARGET
        await asyncio.sleep(1.0 if by_target else 0.1)
        return Written([-i - 1 if by_target else i + 1], f"text {i}, {by_target}"), 1

    sessions = MagicMock(at=lambda endpoint: MagicMock(endpoint=endpoint, close=AsyncMock()))
    sessions.__getitem__.return_value.endpoint = TARGET
    ids = list[int]()
    with patch.object(Expansion, "_written", side_effect=written):
        async with made.at(sessions):
            while not made.whole:
                ids += await made.next() or ()
    return ids


@in_virtual_time
async def test_sentences_that_the_target_doubts_are_its_own() -> None:
    made, _ = expansion(SketchPlan(load=0.0), place=Place(PHONE, 3, token_s=1.0))
    with telling([False, True, True]) as asked:
        assert await said(made) == [1, -2, -3]
    assert asked.call_count == 1, "all that were there are judged at once"
    assert asyncio.get_running_loop().time() == pytest.approx(1.1, abs=0.01), "and corrected at once"
    counts = made._counts
    assert (counts.verified, counts.rewritten) == (3, 2)


@pytest.mark.parametrize(
    ("plan", "took_s", "ids"),
    [
        (SketchPlan(load=1.0), 0.0, [1, 2, 3]),
        (SketchPlan(load=0.0, bounded=True, budget_s=0.5, full_s=1.0), 0.0, [1, 2, 3]),
        (SketchPlan(load=0.0, bounded=True, budget_s=2.0, full_s=2.0), 0.0, [1, -2, 3]),
        (SketchPlan(load=0.0, bounded=True, budget_s=9.0, full_s=9.0), 20.0, [1, 2, 3]),
    ],
    ids=["no room", "no time", "time", "late"],
)
@in_virtual_time
async def test_verification_takes_no_longer_than_the_target_would(
    plan: SketchPlan, took_s: float, ids: list[int]
) -> None:
    made, _ = expansion(plan, place=Place(PHONE, 3, token_s=1.0))
    with telling([False, True, False], took_s):
        assert await said(made) == ids
    assert asyncio.get_running_loop().time() <= max(plan.budget_s, 0.1) + 0.01


@in_virtual_time
async def test_what_has_been_said_is_the_targets_to_say_otherwise() -> None:
    made, _ = expansion(SketchPlan(), place=Place(PHONE, 1))
    texts = iter(["the same", "The same", "something new", "another"])

    async def written(session: object, i: int, *_: object) -> tuple[Written, int]:
        return Written([i], next(texts)), 1

    with patch.object(Expansion, "_written", side_effect=written):
        async with made.at(MagicMock()):
            while not made.whole:
                assert await made.next() is not None
    assert isinstance(made._counts, Sketched)
    assert made._counts.rewritten == 1


@pytest.mark.parametrize(
    ("plan", "corrected"),
    [
        (SketchPlan(load=0.0), True),
        (SketchPlan(load=0.0, bounded=True, budget_s=2.0, full_s=6.0), True),
        (SketchPlan(load=0.0, bounded=True, budget_s=2.0, full_s=6.3), False),
    ],
    ids=["unbounded", "26 of 80 tokens in 1.95 s", "26 of 80 tokens in 2.05 s"],
)
@in_virtual_time
async def test_a_doubted_sentence_is_written_anew_where_that_is_in_time(
    plan: SketchPlan, corrected: bool
) -> None:
    made, _ = expansion(plan)
    chosen = Written([1], "first", model="small")
    for i in (0, 2):  # the second one is still being written
        made._sentences[i].written[0] = chosen
    limits: list[object] = []

    async def verdicts(target: object, said: object, claims: Sequence[object], *rest: object) -> list[bool]:
        assert len(claims) == 1
        limits.extend(rest)
        return [True]

    async def written(*_: object) -> tuple[Written, int]:
        return Written([-1], "other"), 1

    made._judge, made._sessions = MagicMock(), MagicMock(at=lambda _: AsyncMock())
    with (
        patch.object(Verification, "doubted", side_effect=verdicts),
        patch.object(Expansion, "_written", side_effect=written),
    ):
        await made._verify(chosen)
        assert (0 in made._corrections) is corrected
        await asyncio.gather(*made._corrections.values())
    assert limits == [plan.budget_s / 2 if plan.bounded else None, 2 * 26], "two sentences are to follow"


@in_virtual_time
async def test_sentences_that_have_gone_out_are_not_written_any_more() -> None:
    made, _ = expansion(SketchPlan())
    made._next, counts, numbers = 1, [0, 7], list[tuple[int, int]]()

    async def written(session: object, i: int, number: int) -> tuple[Written, int]:
        numbers.append((i, number))
        return Written([i], f"text {i}"), 5

    made._sessions = MagicMock(at=lambda _: AsyncMock())
    with patch.object(Expansion, "_written", side_effect=written):
        await made._write_group(Place(PHONE, 2), 0, [0, 1, 2], counts, 1)
        assert await made._rewritten(2) == Written([2], "text 2")
    assert (numbers, counts) == ([(1, 0), (2, 0), (2, 0)], [0, 17])
    assert [sentence.written.get(0) is not None for sentence in made._sentences] == [False, True, True]
