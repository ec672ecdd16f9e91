"""Wording of questions of our own, `questions.csv`: our labels, by Skeleton-of-Thought's published criteria."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.sketch.wording import ASKS_FOR_POINTS, BINDS, LOOKED_AT, Feature, read


class Question(NamedTuple):
    """One of ours. kind: of question, or of what makes its answer one piece."""

    sketchable: bool
    kind: str
    text: str


def _questions() -> list[Question]:
    with (Path(__file__).parent / "questions.csv").open(newline="") as rows:
        return [
            Question(row["sketchable"] == "1", row["kind"], row["question"]) for row in csv.DictReader(rows)
        ]


def sketchable(text: str) -> bool:
    """The rule by wording alone."""
    asks, binds = read(text)
    return bool(asks) and not binds


QUESTIONS = _questions()
SKETCHED = [one.text for one in QUESTIONS if sketchable(one.text)]
KINDS = sorted({(one.kind, one.sketchable) for one in QUESTIONS})


@pytest.mark.parametrize(("kind", "wanted"), KINDS, ids=[kind for kind, _ in KINDS])
def test_nearly_all_questions_of_a_kind_are_judged_as_we_judge_them(kind: str, wanted: bool) -> None:
    texts = [one.text for one in QUESTIONS if one.kind == kind]
    wrong = [text for text in texts if sketchable(text) != wanted]
    assert len(wrong) <= 0.1 * len(texts), wrong


@pytest.mark.parametrize("feature", ASKS_FOR_POINTS + BINDS, ids=lambda one: one.name)
def test_every_feature_makes_a_difference(feature: Feature) -> None:
    def without(text: str) -> bool:
        asks, binds = (tuple(one for one in kind if one is not feature) for kind in read(text))
        return bool(asks) and not binds

    assert any(without(one.text) != sketchable(one.text) == one.sketchable for one in QUESTIONS)


def test_one_that_binds_outweighs_all_that_ask() -> None:
    asked = "What are the main causes of obesity, how do they differ, and why are they important?"
    assert {one.name for one in read(asked).asks} >= {"points", "comparison", "reasons"}
    assert sketchable(asked)
    bound = f"You are a poet. {asked}"
    assert [one.name for one in read(bound).binds] == ["role"]
    assert not sketchable(bound)


@given(
    st.sampled_from(SKETCHED), st.sampled_from(["Answer briefly.", "```x = 1```", "Explain step by step."])
)
def test_who_wants_it_short_or_in_order_gets_no_sketch(text: str, more: str) -> None:
    assert not sketchable(f"{text} {more}")


@given(
    st.sampled_from([one.text for one in QUESTIONS]), st.text(" \n\t", max_size=3), st.text(" \n", max_size=3)
)
def test_neither_case_nor_space_around_it_matters(text: str, before: str, after: str) -> None:
    assert read(before + text.swapcase() + after) == read(text)


@given(st.sampled_from(SKETCHED), st.text(min_size=LOOKED_AT), st.booleans())
def test_who_quotes_a_passage_asks_about_it(text: str, passage: str, first: bool) -> None:
    asked = f"{passage}|{text}" if first else f"{text} {passage}|"
    assert "given text" in {one.name for one in read(asked).binds}
    assert not sketchable(asked)


@given(st.text(alphabet=st.characters(categories=["N", "P", "S", "Z"])))
def test_without_words_nothing_asks_for_points(text: str) -> None:
    assert not read(text).asks


@pytest.mark.parametrize("text", ["", "   ", "?", "42"])
def test_what_shows_nothing_has_no_feature(text: str) -> None:
    assert read(text) == ((), ())
