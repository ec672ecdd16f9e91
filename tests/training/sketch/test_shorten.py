"""Shortened sketches are shorter, and what is made of them is no worse."""

from __future__ import annotations

from random import Random

import pytest

from tandem.training.family.expand import expand
from tandem.training.family.scoring import fact_accuracy
from tandem.training.sketch.imitate import draw_items
from tandem.training.sketch.score import Expander
from tandem.training.sketch.shorten import Worth, as_good, shorten


@pytest.mark.slow
def test_notes_lose_words_and_no_facts_are_lost(small: Expander) -> None:
    items = draw_items(12, Random(6))
    shortened = shorten(items, small, words=2, rng=Random(1))
    for item, shorter in zip(items, shortened, strict=True):
        for line, kept in zip(item.lines, shorter.lines, strict=True):
            assert 0 <= len(line.note.split()) - len(kept.note.split()) <= 2
            words = iter(line.note.split())
            assert all(word in words for word in kept.note.split())  # in their order
            assert (kept.sentence, kept.value) == (line.sentence, line.value)
    questions = [item.question for item in items]
    whole, short = ([item.notes for item in some] for some in (items, shortened))
    assert sum(map(small.tokens, short)) < sum(map(small.tokens, whole))
    before, after = (
        fact_accuracy(items, map(" ".join, expand(small.write, questions, notes))) for notes in (whole, short)
    )
    assert after >= before, "also where notes that became whole again change their neighbours' sentences"


@pytest.mark.slow
def test_a_kind_of_questions_notes_are_shortened_everywhere_or_nowhere(small: Expander) -> None:
    items = draw_items(6, Random(5))
    notes: dict[tuple[str, str], set[str]] = {}
    for item, shorter in zip(items, shorten(items, small, 1, Random(1)), strict=True):
        for line, kept in zip(item.lines, shorter.lines, strict=True):
            notes.setdefault((item.kind, line.note), set()).add(kept.note)
    assert {len(found) for found in notes.values()} == {1}


def test_as_good_wants_the_facts_and_the_words() -> None:
    before = Worth(3, 0.6)
    assert as_good(Worth(3, 0.6), before)
    assert as_good(Worth(4, 0.7), before)
    assert not as_good(Worth(2, 0.9), before)
    assert not as_good(Worth(4, 0.5), before)
