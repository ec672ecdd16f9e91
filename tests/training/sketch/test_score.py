"""PICE's score of a sketch, by hand."""

from __future__ import annotations

import pytest

from tandem.training.sketch.score import Expander, Score


def test_score_is_the_papers_sum() -> None:
    score = Score(b1=2.0, b2=0.5)
    assert score.of(8, "a b", "a b") == pytest.approx(2 / 8 + 0.5)
    assert score.of(8, "a x", "a b") == pytest.approx(2 / 8 + 0.5 * 0.5)
    assert score.of(0, "", "a b") == 0  # nothing was sketched


def test_tokens_of_a_sketch_are_those_of_its_lines_and_separators(small: Expander) -> None:
    one, two = ["river Jade"], ["river Jade", "river Jade"]
    assert small.tokens(two) == 2 * small.tokens(one) + 1
    assert small.tokens([]) == 0
