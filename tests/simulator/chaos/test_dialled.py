"""Devices that dial in, in virtual time: what is promised to them holds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.simulator.chaos.dialled import play_dialled, scenario
from tests.effort import tried

SEEDS = [seed for seed in tried(range(100), range(600)) if scenario(seed)[0]]


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Every fault is logged."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_promises_hold(tmp_path: Path) -> None:
    for seed in SEEDS:
        (tmp_path / str(seed)).mkdir()
        assert not play_dialled(seed, tmp_path / str(seed)).broken, seed


def test_a_seed_replays(tmp_path: Path) -> None:
    seen = []
    for again in ("first", "second"):
        (tmp_path / again).mkdir()
        answers = play_dialled(SEEDS[0], tmp_path / again).answers
        seen.append([(answer.ids, answer.times_s, answer.failure) for answer in answers])
    assert seen[0] == seen[1] != []
