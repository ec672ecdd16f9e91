"""The family's own form of sketches, read token by token."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies

from tandem.engine import family
from tandem.engine.sketch.base import Extent, Question
from tandem.engine.sketch.marked import MarkedFormat
from tandem.engine.text.tokenizer import Tokenizer
from tandem.training.family import prompts

TOKENIZER = Tokenizer.load(family.path("target"))
FORMAT = MarkedFormat(TOKENIZER)
ASKED = "Tell me about Marworth."
QUESTION = Question(tuple(TOKENIZER.encode(prompts.answer_prompt(ASKED))))
WRITTEN = " 130<|;|> town on the Ise<|;|> market on Mondays<|;|> famous for glass<eos>"


def test_it_asks_as_the_family_was_trained() -> None:
    assert FORMAT.sketch(QUESTION) == TOKENIZER.encode(prompts.sketch_prompt(ASKED))
    sketch = FORMAT.read(TOKENIZER.encode(WRITTEN), ended=True)
    notes = prompts.parse_sketch(WRITTEN).lines
    for i, note in enumerate(notes):
        expected = TOKENIZER.encode(prompts.expansion_prompt(ASKED, notes, note))
        assert FORMAT.expand(QUESTION, sketch, i) == expected
    alone = prompts.expansion_prompt(ASKED, notes[:1], notes[0])
    assert FORMAT.opening(QUESTION, sketch.notes[0]) == TOKENIZER.encode(alone)


def test_a_prompt_that_is_no_question_has_no_sketch() -> None:
    assert FORMAT.sketch(Question(tuple(TOKENIZER.encode("Once upon a time")))) is None


def test_it_reads_what_is_there_so_far() -> None:
    ids = TOKENIZER.encode(WRITTEN)
    before = FORMAT.read([], ended=False)
    assert before.expected is None
    for n in range(len(ids) + 1):
        sketch = FORMAT.read(ids[:n], ended=n == len(ids))
        assert sketch.notes[: len(before.notes)] == before.notes, "what was read stays"
        assert before.expected in (None, sketch.expected)
        before = sketch
    assert before.expected == 130
    assert [FORMAT.text(note) for note in before.notes] == list(prompts.parse_sketch(WRITTEN).lines)


@pytest.mark.parametrize(
    ("written", "expected", "notes"),
    [
        ("", None, 0),
        ("<eos>", None, 0),
        (" many<|;|> one<|;|> two<eos>", None, 2),
        (" 120<eos>", 120, 0),
        (" 120<|;|><|;|> <|;|> one<eos>", 120, 1),
        (" 99999999999999<|;|> one<eos>", None, 1),
    ],
)
def test_what_is_no_list_is_read_all_the_same(written: str, expected: int | None, notes: int) -> None:
    sketch = FORMAT.read(TOKENIZER.encode(written), ended=True)
    assert sketch.expected == expected
    assert len(sketch.notes) == notes


@given(strategies.lists(strategies.integers(0, TOKENIZER.vocab_size - 1), max_size=40), strategies.booleans())
def test_anything_can_be_read(ids: list[int], ended: bool) -> None:
    sketch = FORMAT.read(ids, ended)
    assert all(note for note in sketch.notes)


def test_models_without_the_marks_have_another_form() -> None:
    assert MarkedFormat.of(TOKENIZER) is not None


def test_a_sketch_is_as_long_as_the_family_makes_it() -> None:
    assert FORMAT.sketch(QUESTION, Extent(20, 200)) is None
    assert FORMAT.sketch_form(Extent(20, 200)) is None
