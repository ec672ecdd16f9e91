"""Sketches asked for in words, and whatever a model may answer to that."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies

from tandem.engine import family
from tandem.engine.sketch.base import Question
from tandem.engine.sketch.prompted import PromptedFormat
from tandem.engine.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load(family.path("target"))  # any chat model's would do
FORMAT = PromptedFormat(TOKENIZER)
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sky blue?"}]
QUESTION = Question(tuple(TOKENIZER.render_chat(CHAT)), CHAT, "Why is the sky blue?")
WRITTEN = (
    "Words: 90\n1. sunlight has all colours\n2. air scatters blue most\n3. so blue comes from everywhere\n"
)


def read(text: str, ended: bool = True) -> tuple[int | None, list[str]]:
    sketch = FORMAT.read(TOKENIZER.encode(text), ended)
    return sketch.expected, [FORMAT.text(note) for note in sketch.notes]


def test_the_conversation_stays_and_its_last_question_is_asked_otherwise() -> None:
    prompt = FORMAT.sketch(QUESTION)
    assert prompt is not None
    text = TOKENIZER.decode(prompt)
    assert text.index("Be brief.") < text.index("Do not answer") < text.rindex("Why is the sky blue?")


def test_what_is_no_chat_has_no_sketch() -> None:
    assert FORMAT.sketch(Question(QUESTION.prompt)) is None


def test_the_expected_length_is_in_tokens() -> None:
    expected, notes = read(WRITTEN)
    assert expected == 120
    assert notes == ["sunlight has all colours", "air scatters blue most", "so blue comes from everywhere"]


def test_a_line_counts_when_it_is_whole() -> None:
    for n in range(len(WRITTEN)):
        _, notes = read(WRITTEN[:n], ended=False)
        assert len(notes) == sum(
            line[0] in "123" for line in WRITTEN[:n].splitlines(True) if line[-1] == "\n"
        )


@pytest.mark.parametrize(
    ("text", "expected", "notes"),
    [
        ("", None, []),
        ("The sky is blue because of scattering.", None, []),
        ("Sure! Here is a sketch:\n\n**Words:** 120\n\n1) one\n2) two", 160, ["one", "two"]),
        ("75\n- one\n* two\n• three", 100, ["one", "two", "three"]),
        ("Length: 30 words\n1. one\nand more of one\n2. two", 40, ["one", "two"]),
    ],
)
def test_models_that_do_as_they_like(text: str, expected: int | None, notes: list[str]) -> None:
    assert read(text) == (expected, notes)


def test_each_note_is_asked_for_in_sight_of_all() -> None:
    sketch = FORMAT.read(TOKENIZER.encode(WRITTEN), True)
    text = TOKENIZER.decode(FORMAT.expand(QUESTION, sketch, 1))
    assert all(FORMAT.text(note) in text for note in sketch.notes)
    assert "short sentence air scatters blue most" in text
    assert "Be brief." in text


def test_sentences_are_joined_by_one_space() -> None:
    written = [" Air scatters blue.\n", "So blue comes from everywhere."]
    ids = [
        token
        for i, text in enumerate(written)
        for token in FORMAT.sentence(TOKENIZER.encode(text), first=i == 0)
    ]
    assert TOKENIZER.decode(ids) == "Air scatters blue. So blue comes from everywhere."
    assert FORMAT.sentence(TOKENIZER.encode(" \n"), first=False) == []


@given(strategies.text(max_size=200), strategies.booleans())
def test_anything_can_be_read(text: str, ended: bool) -> None:
    sketch = FORMAT.read(TOKENIZER.encode_bytes(text.encode("utf-8", "replace")), ended)
    assert all(sketch.notes)
