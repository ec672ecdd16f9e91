"""Names are found by lists and by what stands beside them; words that are names at times only are left alone."""

from __future__ import annotations

import pytest

from tandem.engine.privacy.names import NameLists, name_lists


def found(text: str, names: NameLists | None = None) -> list[str]:
    return [text[begin:end] for begin, end in (names or name_lists()).find(text)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Please ask Anna Svensson.", ["Anna", "Svensson"]),
        ("Anna's sister met John J. Smith and Maria de la Cruz.", ["Anna", "John", "Smith", "Maria", "Cruz"]),
        ("Dear Dr. Qwxyz, my name is Rose.", ["Qwxyz", "Rose"]),
        ("a letter to JOHN SMITH", ["JOHN", "SMITH"]),
        ("Mark Twain wrote it, and Virginia Woolf read it", ["Virginia", "Woolf"]),
        ("ask Mark Twain", ["Mark", "Twain"]),
        ("Вот Анна", ["Анна"]),
        ("I met Gianluigi Qwajello there", ["Gianluigi", "Qwajello"]),
        ("Dear Kiki Le Marec, hello", ["Kiki", "Le", "Marec"]),
    ],
)
def test_names(text: str, names: list[str]) -> None:
    assert found(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "Will you come in May? Mark the date; Rose grew in Paris, London and Jordan.",
        "Dear Customer, write the German text in English.",
        "The anna is a coin, and Anna was a coin as well.",  # in lower case, too: an ordinary word here
        "NW1 and USA",
        "",
    ],
)
def test_words_that_are_none(text: str) -> None:
    assert found(text) == []


def test_lists_can_be_left_out() -> None:
    text = "ask Guðbjörg about it"
    assert found(text) == ["Guðbjörg"]
    assert found(text, NameLists(without=("is_IS",))) == []
