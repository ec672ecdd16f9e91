"""Everybody is judged by the same questions, and nobody by those that it was chosen on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tandem.benchmarks.pice.embedded import Answer, Models, ask
from tandem.benchmarks.pice.quality import (
    CLOUD,
    Graded,
    Way,
    answers,
    as_decided,
    choose,
    difference,
    evaluate,
    figures,
    length,
    routed,
    token_share,
)
from tandem.benchmarks.scores import Scores
from tandem.policies.sketch.suitability import sketchable
from tandem.training.family.encyclopedia.items import TASK_KINDS, Item
from tandem.training.family.prompts import heldout
from tests.effort import tried

ITEMS = heldout(40, TASK_KINDS, seed=3)
BY_CLOUD = [Answer(item.answer, 100, 100, sketched=False) for item in ITEMS]
BY_EDGE = [Answer("Nobody knows.", 3, 0, sketched=False) for _ in ITEMS]
SKETCHED = [Answer(item.answer, 100, 30, sketched=True) for item in ITEMS]


def test_what_is_stated_counts_and_only_that() -> None:
    right, wrong = Graded.of(ITEMS, BY_CLOUD), Graded.of(ITEMS, BY_EDGE)
    assert (right.facts, right.rouge, right.complete) == (1.0, 1.0, 1.0)
    assert (wrong.facts, wrong.complete) == (0.0, 0.0)
    half = Graded.of(ITEMS, [*BY_CLOUD[:20], *BY_EDGE[20:]])
    asked = [len(item.lines) for item in ITEMS]
    assert half.facts == pytest.approx(sum(asked[:20]) / sum(asked))
    assert half.complete == 0.5


def test_routing_leaves_short_answers_to_the_edge() -> None:
    found = routed(ITEMS, 60, BY_EDGE, BY_CLOUD)
    assert {answer.llm_tokens for answer in found} == {0, 100}
    assert [answer.llm_tokens for answer in found] == [0 if length(item) <= 60 else 100 for item in ITEMS]
    assert routed(ITEMS, 10_000, BY_EDGE, BY_CLOUD) == BY_EDGE
    assert routed(ITEMS, 0, BY_EDGE, BY_CLOUD) == BY_CLOUD


def test_what_wording_speaks_against_is_the_clouds() -> None:
    found = as_decided(ITEMS, SKETCHED, BY_CLOUD)
    assert [answer.sketched for answer in found] == [sketchable(item.question) for item in ITEMS]
    assert {answer.sketched for answer in found} == {True, False}


async def test_every_model_writes_a_sentence_for_each_note() -> None:
    models = Models(("tiny", "small"), sessions=2)
    (item,) = heldout(1, ["overview"], seed=3)
    rows = [row async for row in models.sentences(item)]
    await models.close()
    assert len(rows) > 1
    for note, expected, found in rows:
        assert list(found) == ["tiny", "small"]
        assert note
        assert expected > 0
        assert all(one.text and one.tokens > 0 and one.log_probability < 0 for one in found.values())


def test_shares_of_tokens() -> None:
    mixed = [*SKETCHED[:10], *BY_CLOUD[10:]]
    assert token_share(mixed, BY_CLOUD, only_sketched=True) == pytest.approx(0.3)
    assert token_share(mixed, BY_CLOUD, only_sketched=False) == pytest.approx((0.3 * 10 + 30) / 40)
    assert np.isnan(token_share(BY_CLOUD, BY_CLOUD, only_sketched=True))


def test_a_difference_has_an_interval_unless_there_is_none() -> None:
    right, wrong = Graded.of(ITEMS, BY_CLOUD).scores, Graded.of(ITEMS, BY_EDGE).scores
    assert difference(right, right, seed=1) == (0.0, 0.0)
    assert difference(right, wrong, seed=1) == (1.0, 0.0)
    half = Scores(np.where(np.arange(40) % 2, right.stated, 0), right.asked, right.rouge)
    found, error = difference(half, wrong, seed=1)
    assert 0.3 < found < 0.7
    assert 0.05 < error < 0.3
    assert difference(wrong, half, seed=1) == (pytest.approx(-found), pytest.approx(error))


def test_figures_are_of_the_ensemble_beside_the_others() -> None:
    cloud, edge, pice = (Graded.of(ITEMS, given) for given in (BY_CLOUD, BY_EDGE, SKETCHED))
    graded = {"cloud": cloud, "edge": edge, "routing": edge, "single": edge, "ensemble": pice}
    graded["as decided"] = Graded.of(ITEMS, as_decided(ITEMS, SKETCHED, BY_CLOUD))
    found = figures(graded, seed=1)
    assert found["pice_over_cloud"] == found["pice_minus_edge"] == found["ensemble_gain"] == 1.0
    assert found["llm_token_share"] == found["llm_token_share_overall"] == 0.3
    assert 0.3 < found["as_decided_llm_token_share_overall"] < 1.0
    assert found["as_decided_sketched_share"] == pytest.approx(
        sum(sketchable(item.question) for item in ITEMS) / len(ITEMS)
    )


@pytest.mark.slow
async def test_who_answers_is_whom_the_way_names() -> None:
    models = Models(["small", "other"], sessions=64)
    items = [item for item in ITEMS if item.kind in ("overview", "fact")][: tried(3, 6)]
    by_cloud, alone, pice, both = [
        await answers(models, way, items)
        for way in (
            CLOUD,
            Way("device", ("small",)),
            Way("sketch", ("small",)),
            Way("sketch", ("small", "other")),
        )
    ]
    executor = models.executor(("small",), CLOUD.settings)
    again = Answer.of([delta async for delta in executor.run(ask(items[0], "cloud"))])
    await executor.settled()
    await models.close()
    assert again == by_cloud[0]
    long = [item.kind == "overview" for item in items]
    assert 0 < sum(long) < len(items)
    assert [a.llm_tokens for a in by_cloud] == [a.tokens for a in by_cloud]
    assert {a.llm_tokens for a in alone} == {0}
    for found in (pice, both):
        assert [a.sketched for a in found] == long
        assert all(a.llm_tokens < c.llm_tokens for a, c in zip(found, by_cloud, strict=True) if a.sketched)
        assert [replace(a, llm_tokens=0) for a in found if not a.sketched] == [
            replace(c, llm_tokens=0) for a, c in zip(found, by_cloud, strict=True) if not a.sketched
        ]
    scores = [Graded.of(items, found).facts for found in (alone, pice, by_cloud)]
    assert scores == sorted(scores)
    assert scores[0] < scores[1]


@pytest.mark.slow
async def test_choices_are_those_that_state_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices follow the questions on which they are made."""

    async def given(models: Models, way: Way, items: list[Item]) -> list[Answer]:
        known = {"tiny": 0.2, "small": 0.5, "medium": 0.4}
        share = 1.0 if way == CLOUD else max(known[name] for name in way.models)
        share += 0.3 if way.models == ("small", "tiny") else 0.0
        share *= 0.5 if way.mode == "device" else 1.0
        tokens = {"cloud": 100, "device": 0, "sketch": 40}[way.mode]
        return [
            Answer(item.answer if n < share * len(items) else "", 100, tokens, way.mode == "sketch")
            for n, item in enumerate(items)
        ]

    monkeypatch.setattr("tandem.benchmarks.pice.quality.answers", given)
    models = Models([], sessions=1)
    chosen = await choose(models, ["tiny", "small", "medium"], ITEMS)
    await models.close()
    assert (chosen.edge, chosen.single) == (Way("device", ("small",)), Way("sketch", ("small",)))
    assert chosen.ensemble == Way("sketch", ("small", "tiny"))
    long = [item for item in ITEMS if length(item) > chosen.longest]
    assert 100 * len(long) <= 40 * len(ITEMS), "no more of the target's tokens than PICE"
    assert long


@pytest.mark.slow
async def test_the_judged_are_not_those_that_were_chosen_by() -> None:
    chosen, items, graded = await evaluate(["small"], questions=8, choosing_seed=5, seed=11)
    assert chosen.single.models == ("small",)
    assert chosen.ensemble.models == ("small", "small")
    assert not {i.question for i in items} & {i.question for i in heldout(8, TASK_KINDS, 5)}
    assert {len(each.answers) for each in graded.values()} == {len(items)}
    assert set(graded) == {"cloud", "edge", "routing", "single", "ensemble", "as decided"}
    assert graded["ensemble"].facts > graded["edge"].facts
