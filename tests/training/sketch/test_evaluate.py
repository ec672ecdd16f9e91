"""The figures are those of real sketches and expansions, and the bar is what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.training.family.prompts import heldout
from tandem.training.sketch.evaluate import Figures, compare, measure
from tandem.training.sketch.score import Expander

BEFORE = Figures((40, 60), (45, 65), (7, 8), (8, 10), (0.6, 0.7), 0.1, 0.9, 0.9)


@pytest.mark.slow
def test_figures_of_a_real_model(small: Expander) -> None:
    items, facts = heldout(4, seed=5), heldout(4, ["fact"], 5)
    figures = measure(small.model, small, items, facts)
    assert all(few < every for few, every in zip(figures.tokens, figures.all_tokens, strict=True))
    assert figures.asked == tuple(len(item.lines) for item in items)
    assert all(0 <= stated <= asked for stated, asked in zip(figures.stated, figures.asked, strict=True))
    assert 0 < min(figures.rouge) <= max(figures.rouge) <= 1


@pytest.mark.parametrize(
    ("change", "met"),
    [
        ({"tokens": (36, 54)}, True),
        ({"tokens": (37, 54)}, False),
        ({"tokens": (36, 54), "stated": (7, 7)}, False),
        ({"tokens": (36, 54), "stated": (8, 7)}, True),
        ({"tokens": (36, 54), "rouge": (0.6, 0.69)}, False),
        ({}, False),
    ],
)
def test_the_bar_is_ten_percent_at_nothing_lost(change: dict[str, tuple[float, ...]], met: bool) -> None:
    found = compare(BEFORE, replace(BEFORE, **change))  # type: ignore[arg-type]
    assert found["bar_met"] is met
    saved, low, high = found["saved"]
    assert low <= saved <= high
