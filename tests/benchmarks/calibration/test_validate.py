"""The errors that the hardware model tells are those on what it has not seen."""

from __future__ import annotations

from statistics import mean

import pytest

from tandem.benchmarks.calibration.validate import combinations, rows
from tandem.simulator.hardware.catalog import ERRORS, SCALED_DENSE_ERROR
from tests.simulator.data import DATA, needs_data


@needs_data
def test_held_out_rows_are_met() -> None:
    assert DATA is not None
    by_operation: dict[str, list[tuple[float, int]]] = {"prefill": [], "decode": []}
    for found in rows(DATA):
        by_operation[found.operation].append((found.error, found.rows))
    for operation, bar in (("prefill", 0.08), ("decode", 0.06)):
        found = by_operation[operation]
        assert len(found) > 5
        assert mean(error for error, _ in found) <= bar
        assert sum(error * rows for error, rows in found) / sum(rows for _, rows in found) <= bar


@needs_data
def test_the_errors_that_are_told_are_those_of_held_out_combinations() -> None:
    assert DATA is not None
    errors: dict[tuple[str, str], list[float]] = {}
    for found in combinations(DATA):
        errors.setdefault((found.operator, found.method), []).append(found.error)
    assert mean(errors["dense", "scaled"]) == pytest.approx(SCALED_DENSE_ERROR, abs=0.005)
    for operator, told in ERRORS.items():
        assert mean(errors[operator, "roofline"]) <= told < mean(errors[operator, "roofline"]) + 0.05
