"""Faults in the code itself are seen: each breaks a promise with the seed that once showed it, or with another one."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from tandem.benchmarks.robustness.sabotages import SABOTAGES, Sabotage
from tandem.engine.core.kvcache import BlockPool

OTHER_SEEDS = range(2000, 2200)

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of what hangs for ever


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Every fault is logged. What earlier tests left is kept from the collections of garbage after each seed."""
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.what)
def test_is_seen(sabotage: Sabotage) -> None:
    assert not [told for told in sabotage.broken(sabotage.seed) if sabotage.promise in told], "not by itself"
    assert sabotage.found_by([sabotage.seed, *OTHER_SEEDS]) is not None


def test_is_undone() -> None:
    (sabotage,) = (each for each in SABOTAGES if each.promise == "blocks in use")
    release = BlockPool.release
    with sabotage.applied():
        assert BlockPool.release is not release
    assert BlockPool.release is release


def test_none_of_the_seeds_shows_it() -> None:
    harmless = Sabotage("nothing", "waited", 0, lambda seed: ["waited"] * (seed == 7), list)
    assert harmless.found_by(range(5)) is None
    assert harmless.found_by(range(5, 10)) == 7
