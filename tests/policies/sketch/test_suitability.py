"""Suitability of single questions and of those in conversations, and what the classifier has of either."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.sketch import suitability
from tandem.policies.sketch.suitability import Classifier, features, sketchable, trained

with (Path(__file__).parent / "questions.csv").open(newline="") as rows:
    QUESTIONS = [(row["sketchable"] == "1", row["question"]) for row in csv.DictReader(rows)]
ASKED = "What are the main causes of obesity?"


def test_our_own_questions_are_judged_as_we_do() -> None:
    wrong = [text for wanted, text in QUESTIONS if sketchable(text) != wanted]
    assert len(wrong) <= 0.03 * len(QUESTIONS), wrong


@pytest.mark.parametrize(
    "text",
    [
        "List five prime numbers.",
        "Who played the role of Hamlet in the film of 1948?",
        "How can I fix the bug in the code above?",
        "What are the benefits of running? Answer with a JSON array and nothing else.",
        "A is the father of B, B is the brother of C. What are the relations of A?",
        "Compare tea and coffee in a table.",
        "Was ist die Hauptstadt von Peru?",
        "日本の首都はどこですか",
        "",
        "?",
        "Xyzzy plugh frotz?",
    ],
)
def test_in_full(text: str) -> None:
    assert not sketchable(text)


@pytest.mark.parametrize(
    "text",
    [
        ASKED,
        "Was sind die wichtigsten Ursachen von Übergewicht?",
        "¿Cuáles son las ventajas de la energía solar?",
        "Quels sont les avantages du vélo en ville ?",
        "学习外语有哪些好处?",
    ],
)
def test_sketched(text: str) -> None:
    assert sketchable(text)


@pytest.mark.parametrize(
    ("system", "wanted"),
    [
        ("You are a helpful assistant.", True),
        ("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", True),
        ("Answer in one sentence.", False),
        ("Always reply in JSON.", False),
        ("Respond like a pirate.", False),
    ],
)
def test_a_system_prompt_binds_all_answers(system: str, wanted: bool) -> None:
    assert sketchable(ASKED, system=system) == wanted


def test_what_refers_back_is_bound_by_what_it_refers_to() -> None:
    code = "Write a Python function that checks whether a binary tree is balanced."
    plan = "Plan a three-day trip to Rome, day by day."
    assert not sketchable("What are some ways to improve it?", [code])
    assert not sketchable("What if it is not a binary tree?", [code])
    assert not sketchable("Provide more details for Day 1.", [plan])
    assert sketchable(ASKED, [code])  # another subject
    assert sketchable("What are some ways to treat it?", [ASKED])


@given(st.text(max_size=300), st.lists(st.text(max_size=80), max_size=3), st.text(max_size=80))
def test_a_conversation_only_takes_sketches_away(text: str, earlier: list[str], system: str) -> None:
    assert sketchable(text) or not sketchable(text, earlier, system)


def test_weights_add_up() -> None:
    classifier = Classifier(-1.0, {"asks points": 2.0, "word obesity": 0.5, "word absent": 9.0})
    assert classifier.log_odds(ASKED) == 1.5
    assert set(trained().weights) & features(ASKED)
    assert len(trained().weights) <= 200


def test_features_of_a_question_by_hand() -> None:
    names = features("Name 12 rivers, please?")
    assert {name for name in names if name.startswith(("word", "pair"))} == {
        "word name", "word #", "word rivers", "word ,", "word please", "word ?",
        "pair name #", "pair # rivers", "pair rivers ,", "pair , please", "pair please ?",
    }  # fmt: skip
    assert {"first name", "first two name #", "length 2"} <= names
    assert "ways of asking 0" in features("Xyzzy plugh?")
    many = features(
        "List the causes, compare them, and what are the benefits? How can I improve? Explain why."
    )
    assert "ways of asking 3" in many, "no more are told apart"


def test_a_fifth_of_the_words_must_be_known_and_two_at_least() -> None:
    known = Classifier(0.0, {"word alpha": 1.0, "word beta": 1.0, "word ?": 1.0})
    ten = "alpha beta xa xb xc xd xe xf xg xh"
    assert known.understands(ten)
    assert not known.understands(ten + " xi")
    assert known.understands("alpha beta")
    assert not known.understands("alpha ?")


def test_a_wrong_no_is_five_times_as_bad_as_a_wrong_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    for odds, wanted in ((1 / 4.9, True), (1 / 5.1, False)):
        classifier = Classifier(math.log(odds), {"word alpha": 0.0, "word beta": 0.0})
        monkeypatch.setattr(suitability, "trained", lambda known=classifier: known)
        assert sketchable("alpha beta") is wanted


def test_what_was_asked_five_turns_ago_binds_no_more() -> None:
    code, other = "Write a Python function that checks whether a binary tree is balanced.", ASKED
    again = "What are some ways to improve it?"
    assert not sketchable(again, [code, other, other, other])
    assert sketchable(again, [code, other, other, other, other])
