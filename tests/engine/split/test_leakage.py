"""Leakage is known for the models at hand; unknown leakage counts as the worst."""

from __future__ import annotations

import pytest

from tandem.benchmarks.hat.leakage import DEPTHS
from tandem.engine import family
from tandem.engine.base import SplitInfo
from tandem.engine.split import leakage
from tandem.engine.split.leakage import Measured, measured, recovery
from tandem.engine.torch.split import bundle


def test_the_embedded_target_was_attacked() -> None:
    split = bundle.describe(family.path("target"), 2)
    known = measured()[split.checksum]
    assert known.model == "target"
    assert "hat_leakage" in known.source
    assert tuple(known.recovered) == DEPTHS
    assert recovery(split) == known.recovered[2]


def test_between_depths_no_less_leaks_than_after_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Measured("m", "here", {2: 0.9, 6: 0.4, 9: 0.1})
    monkeypatch.setattr(leakage, "measured", lambda: {"a": known})
    found = [recovery(SplitInfo("a", m, 12, 512)) for m in range(1, 12)]
    assert found == [1.0, 0.9, 0.9, 0.9, 0.9, 0.4, 0.4, 0.4, 0.1, 0.1, 0.1]


def test_of_a_model_that_nobody_has_attacked_everything_counts_as_read() -> None:
    assert recovery(SplitInfo("unknown", 11, 12, 512)) == 1.0
