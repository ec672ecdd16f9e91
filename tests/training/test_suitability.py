"""The classifier of suitable questions learns what its questions show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.policies.sketch.suitability import WEIGHTS
from tandem.training.suitability import Labelled, fit, labelled, main


def _questions() -> list[Labelled]:
    return [Labelled(i % 2 == 0, ("apples and " if i % 2 == 0 else "pears or ") + "x" * i) for i in range(20)]


def test_it_tells_apart_what_can_be_told_apart() -> None:
    found = fit(_questions(), l2=0.1, most=8)
    assert len(found.weights) == 8
    assert found.log_odds("apples and more") > 0 > found.log_odds("pears or more")
    assert all((found.log_odds(each.text) > 0) == each.sketchable for each in _questions())


def test_the_same_questions_give_the_same_classifier() -> None:
    assert fit(_questions(), 1.0, 10) == fit(_questions(), 1.0, 10)


def test_a_penalty_makes_weights_smaller() -> None:
    loose, strict = (fit(_questions(), l2, 6).log_odds("apples and more") for l2 in (0.1, 10.0))
    assert loose > strict > 0


def test_without_the_labels_nothing_is_written(tmp_path: Path) -> None:
    before = WEIGHTS.read_text()
    with pytest.raises(SystemExit, match="absent"):
        main([str(tmp_path / "absent.csv")])
    assert WEIGHTS.read_text() == before


def test_both_kinds_of_files_are_read(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs.csv", tmp_path / "ours.csv"
    theirs.write_text('label;request\n1;"What; why?"\n0;Who?\n')
    ours.write_text('sketchable,kind,question\n1,advice,"What, why?"\n')
    assert labelled(theirs) == [(True, "What; why?"), (False, "Who?")]
    assert labelled(ours) == [(True, "What, why?")]
