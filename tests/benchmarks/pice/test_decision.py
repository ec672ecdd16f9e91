"""The decision's figures are those of the labels, and the labelled questions are none of ours."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from itertools import product

import pytest

from tandem.benchmarks.paths import DATA
from tandem.benchmarks.pice.decision import (
    LABELLED,
    PUBLISHED,
    Confusion,
    confusion,
    figures,
    should_sketch,
    should_sketch_f1,
    show,
)
from tandem.policies.sketch.suitability import WRONG_NO, sketchable
from tandem.training.suitability import OURS, labelled

needs_prompts = pytest.mark.skipif(not LABELLED.exists(), reason="the public prompts are not on this machine")


def test_decisions_are_counted_beside_their_labels() -> None:
    asks, bare = "What are the main causes of war?", "Who was Bach?"
    found = confusion([(True, asks), (True, asks), (True, asks), (True, bare), (False, asks), (False, bare)])
    assert found == Confusion(sketched=3, missed=1, misled=1, full=1)
    assert found.precision == found.recall == found.f1 == 0.75
    assert confusion([(True, bare)]).f1 == 0.0


def test_published_routers_have_the_papers_counts() -> None:
    asked, trained = PUBLISHED.values()
    assert sum(asked) == sum(trained) == 80
    assert (asked.recall, asked.precision) == (1.0, pytest.approx(37 / 42))
    assert trained.f1 == pytest.approx(2 / (1 / trained.precision + 1 / trained.recall))


def test_a_wrong_no_costs_more_than_a_wrong_yes() -> None:
    no, yes = Confusion(0, 1, 0, 3), Confusion(0, 0, 1, 3)
    assert no.cost == WRONG_NO * yes.cost > yes.cost > 0


@needs_prompts
def test_where_a_wrong_no_costs_more_even_odds_cost_more() -> None:
    found = figures()
    assert found["cost"] < found["cost_at_even_odds"]


@needs_prompts
def test_the_rule_meets_human_labels(capsys: pytest.CaptureFixture[str]) -> None:
    found = should_sketch()
    assert (found.sketched + found.missed, sum(found)) == (37, 80)
    assert found.f1 == should_sketch_f1() >= 0.8
    show()
    assert f"{found.f1:.3f}" in capsys.readouterr().out
    assert figures()["f1"] == round(found.f1, 4)


@needs_prompts
def test_none_of_the_labelled_questions_is_among_those_it_was_tuned_on() -> None:
    with OURS.open(newline="") as rows:
        ours = [_words(row["question"]) for row in csv.DictReader(rows)]
    theirs = [_words(each.text) for each in labelled(LABELLED)]
    assert max(len(a & b) / len(a | b) for a, b in product(ours, theirs)) < 0.6


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _spec_bench(category: str) -> Iterator[str]:
    for one in _lines("spec_bench.jsonl"):
        if one["category"] == category:
            yield one["turns"][0]


def _lines(file: str) -> Iterator[dict]:
    yield from map(json.loads, (DATA / "prompts" / file).read_text().splitlines())


@needs_prompts
@pytest.mark.parametrize(
    "category",
    ["coding", "extraction", "math", "math_reasoning", "rag", "roleplay", "summarization", "translation"],
)
def test_what_is_one_piece_or_short_is_answered_in_full(category: str) -> None:
    texts = list(_spec_bench(category))
    assert texts
    assert [text for text in texts if sketchable(text)] == []


@needs_prompts
def test_programs_and_sums_are_answered_in_full() -> None:
    programs = [one["prompt"] for one in _lines("HumanEval.jsonl")]
    sums = [one["question"] for one in _lines("gsm8k_test.jsonl")]
    assert (len(programs), len(sums)) == (164, 1319)
    assert [text for text in programs if sketchable(text)] == []
    assert len([text for text in sums if sketchable(text)]) <= 1


def _compares(text: str) -> bool:
    """Return whether a question that is filed under facts asks for more than one."""
    return re.search(r"differ|difference between|^should ", text, re.IGNORECASE) is not None


@needs_prompts
def test_most_questions_of_the_humanities_are_sketched_and_few_of_single_facts() -> None:
    humanities, facts = list(_spec_bench("humanities")), list(_spec_bench("qa"))
    assert sum(map(sketchable, humanities)) >= 0.8 * len(humanities)
    misled = [text for text in facts if sketchable(text) and not _compares(text)]
    assert len(misled) <= 0.1 * len(facts)
