"""Sketches asked for in words, and whatever a model may answer to that."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies

from tandem.engine import family
from tandem.engine.sketch.base import Extent, Question
from tandem.engine.sketch.cleaning import sentence_of
from tandem.engine.sketch.prompted import LINE, WORDS_A_TOKEN, PromptedFormat, shape
from tandem.engine.text.grammar import check
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
    assert text.index("Be brief.") < text.index("Why is the sky blue?") < text.rindex("Do not answer yet.")


def test_a_longer_sketch_is_asked_for_in_more_words() -> None:
    def asked(share: float, answer: int = 400) -> str:
        return TOKENIZER.decode(FORMAT.sketch(QUESTION, Extent(round(share * answer), answer)) or ())

    assert [shape(Extent(round(share * 400), 400)) for share in (0.25, 0.5, 0.8)] == [
        (8, 6),
        (8, 16),
        (8, 27),
    ]
    assert "up to 8 numbered lines" in asked(0.25)
    assert "about 6 words" in asked(0.25)
    assert "about 27 words" in asked(0.8)
    assert "up to 12 numbered lines" in asked(0.25, 2000)
    assert "up to 3 numbered lines" in asked(0.25, 60)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_the_form_of_a_sketch_keeps_its_extent(share: float) -> None:
    extent = Extent(round(share * 400), 400)
    lines, words = shape(extent)
    grammar = FORMAT.sketch_form(extent)
    check(grammar)
    form = re.compile(grammar.source)
    line = "1. " + " ".join(["word"] * words) + "\n"
    assert form.fullmatch(line * lines)
    assert lines * (words / WORDS_A_TOKEN + LINE) == pytest.approx(extent.tokens, abs=10)
    for wrong in (
        line,
        line * (lines + 1),
        "Sure!\n" + line * 2,
        f"1. {'word ' * 2 * words}\n" * 2,
        "```\n" * 2,
    ):
        assert not form.fullmatch(wrong)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("Air scatters blue most.", True),
        (" Air scatters blue most, as is known. So it is.", True),
        ("1. sunlight has all colours.", False),
        ("- sunlight has all colours.", False),
        ("Air scatters blue most.\nSo it is.", False),
        ("Air scatters blue most", False),
    ],
)
def test_an_expansion_is_one_line_of_sentences(text: str, allowed: bool) -> None:
    grammar = FORMAT.sentence_form()
    check(grammar)
    assert bool(re.fullmatch(grammar.source, text)) == allowed


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
        ("Words: 1,200\n1. one", 1600, ["one"]),
        ("Words: 1.200\n1. one", 1600, ["one"]),
        ("Words: about 120\n1. one", 160, ["one"]),
        ("about 120 words\n1. one", 160, ["one"]),
        ("**Word count:** ~150\n1. one", 200, ["one"]),
        ("Estimated length: approximately 90 words\n1. one", 120, ["one"]),
        ("Words: 0\n1. one", None, ["one"]),
        ("字数：120\n1、一\n2、二", 160, ["一", "二"]),
        ("Words: 60\n(1) one\n2．two\n**3.** **three**", 80, ["one", "two", "three"]),
        ("<think>\nWords: 6\n1. wrong\n</think>\nWords: 60\n1. one", 80, ["one"]),
        ("<think>\nWords: 6\n1. wrong", None, []),
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


def test_an_item_of_a_list_begins_with_its_label() -> None:
    asked = "What are some ways to save water?"
    question = Question((), [{"role": "user", "content": asked}], asked)
    sketch = FORMAT.read(TOKENIZER.encode("1. shorter showers\n2. mend leaks\n"), True)
    assert TOKENIZER.decode(FORMAT.expand(question, sketch, 1)).endswith("mend leaks:")
    kept = FORMAT.clean(question, sketch, 1, TOKENIZER.encode(" A dripping tap loses much."), True)
    assert TOKENIZER.decode(kept) == "**mend leaks**: A dripping tap loses much."
    assert FORMAT.clean(question, sketch, 1, [], True) == []


def test_of_what_is_broken_off_whole_sentences_are_kept() -> None:
    sketch = FORMAT.read(TOKENIZER.encode(WRITTEN), True)
    for text, kept in {
        "Air scatters blue. It does so 1.5 ti": "Air scatters blue.",
        "Air scatters": "",
        "空气散射蓝光。所以": "空气散射蓝光。",
    }.items():
        assert TOKENIZER.decode(FORMAT.clean(QUESTION, sketch, 1, TOKENIZER.encode(text), False)) == kept


def test_a_note_that_comes_again_is_one() -> None:
    assert read("1. raise taxes\n2. lower rates\n3. Raise taxes.\n")[1] == ["raise taxes", "lower rates"]


def put(question: str, *written: str) -> str:
    ids = [
        token
        for i, text in enumerate(written)
        for token in FORMAT.sentence(Question((), CHAT, question), TOKENIZER.encode(text), i)
    ]
    return TOKENIZER.decode(ids)


def test_sentences_are_joined_by_one_space() -> None:
    written = [" Air scatters blue.\n", "So blue comes from everywhere."]
    assert put("Why is the sky blue?", *written) == "Air scatters blue. So blue comes from everywhere."
    assert put("Why?", "First.", " \n") == "First."


def test_a_list_that_was_asked_for_stays_one() -> None:
    told = put("What are some ways to save water?", "Shorter showers.", "Mend leaks.", "Collect rain.")
    assert told == "1. Shorter showers.\n2. Mend leaks.\n3. Collect rain."


@pytest.mark.parametrize(
    "text",
    [
        "Air scatters blue most.",
        "Here is the completed sentence:\n\nAir scatters blue most.",
        "Sure! Here's a short sentence:\nAir scatters blue most.",
        'Certainly! "Air scatters blue most."',
        "I'm sorry for the confusion, but I can help you with that. Air scatters blue most.",
        "2. Air scatters blue most.",
        "**Air** scatters blue most. Air scatters blue most.",
        "<think>The user wants the second note.</think>Air scatters blue most.",
        "1. sunlight has all colours\n2. Air scatters blue most.\n3. So blue comes from everywhere",
        "Air scatters blue most.\n\nLet me know if you want more.",
    ],
)
def test_of_what_a_model_says_the_sentence_is_kept(text: str) -> None:
    sketch = FORMAT.read(TOKENIZER.encode(WRITTEN), True)
    assert (
        TOKENIZER.decode(FORMAT.clean(QUESTION, sketch, 1, TOKENIZER.encode(text), True))
        == "Air scatters blue most."
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Sure!",
        "<think>What is",
        "1. sunlight has all colours",
        "Sunlight has all colours, air scatters blue most, so blue comes from everywhere.",
    ],
)
def test_of_what_says_nothing_nothing_is_kept(text: str) -> None:
    sketch = FORMAT.read(TOKENIZER.encode(WRITTEN), True)
    assert FORMAT.clean(QUESTION, sketch, 1, TOKENIZER.encode(text), True) == []


@pytest.mark.parametrize(
    "text",
    [
        "Use fruit, e.g. apples, e.g. pears.",
        "It costs 3.50 euros. It costs 4.50 euros.",
        "他说：好。他说：好吧。",
    ],
)
def test_abbreviations_and_numbers_are_no_repetitions(text: str) -> None:
    assert (
        TOKENIZER.decode(FORMAT.clean(QUESTION, FORMAT.read([], True), 0, TOKENIZER.encode(text), True))
        == text
    )


@given(strategies.text(max_size=200), strategies.booleans())
def test_anything_can_be_read(text: str, ended: bool) -> None:
    sketch = FORMAT.read(TOKENIZER.encode_bytes(text.encode("utf-8", "replace")), ended)
    assert all(sketch.notes)


@given(strategies.text(max_size=200))
def test_anything_can_be_cleaned_and_what_is_clean_stays(text: str) -> None:
    once = sentence_of(text, ["a note"])
    assert len(once) <= len(text)
    assert "\n\n" not in once
