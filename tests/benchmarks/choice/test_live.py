from __future__ import annotations

from pathlib import Path

import pytest

from tandem.app.settings import Settings
from tandem.benchmarks.choice.live import FLEETS, Seen, Tried, Way, figures, settings, ways

CLOUD, PHONE = Way("cloud"), Way("device", "phone")


def tried(way: Way, question: int, expected: float, came: float, kind: str = "long") -> Tried:
    said, was = (Seen(loss, 0.1, 0.02, 0.0) for loss in (expected, came))
    return Tried("near", kind, way, question, said, was, (True, question % 2 == 0))


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("models", [None, Path("models")])
def test_the_application_takes_the_settings(fleet: str, models: Path | None) -> None:
    made = Settings(**settings(FLEETS[fleet], models, 2))
    assert made.router.collaboration.name == "auto"
    assert len(ways(FLEETS[fleet])) == 2 + 3 * len(made.hosts[0].devices)


def test_a_ranking_is_right_where_the_expected_order_is_the_measured_one() -> None:
    right = [tried(way, n, loss, loss) for n in (0, 1) for way, loss in ((CLOUD, 1.0), (PHONE, 2.0))]
    wrong = [
        tried(way, n, loss, 3.0 - loss, "short") for n in (0, 1) for way, loss in ((CLOUD, 1.0), (PHONE, 2.0))
    ]
    found = figures([*right, *wrong])
    assert (found["ranked"], found["pairs"], found["repeated"]) == (0.5, 2, 1.0)
    assert found["regret"] == pytest.approx(0.5, abs=1e-3), "3 in place of 2"
    assert (found["held_ttft"], found["held_tpot"]) == (1.0, 0.5)


def test_ways_that_hardly_differ_are_no_pair() -> None:
    found = figures([tried(CLOUD, 0, 1.0, 1.0), tried(PHONE, 0, 2.0, 1.05)])
    assert found["pairs"] == 0
