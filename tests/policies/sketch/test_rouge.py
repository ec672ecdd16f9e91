"""ROUGE-1: symmetric, bounded, and right by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.sketch.rouge import rouge1, words

texts = st.text(max_size=50)


@given(texts, texts)
def test_symmetric_and_bounded(a: str, b: str) -> None:
    assert 0 <= rouge1(a, b) <= 1
    assert rouge1(a, b) == rouge1(b, a)


@given(texts, texts)
def test_one_if_and_only_if_the_words_are_the_same(a: str, b: str) -> None:
    same = bool(words(a)) and sorted(words(a)) == sorted(words(b))
    assert (rouge1(a, b) == 1) == same
    assert rouge1(a, a) == bool(words(a))


def test_by_hand() -> None:
    assert rouge1("a b", "a b") == 1
    assert rouge1("a c", "a b") == 0.5
    assert rouge1("", "a b") == 0
    assert rouge1("The cat, the hat.", "the cat") == 2 * 2 / 6, "a word counts as often as in both"


def test_words_of_any_script() -> None:
    assert words("Zürich's 2 naïve_cafés") == ["zürich", "s", "2", "naïve", "cafés"]
