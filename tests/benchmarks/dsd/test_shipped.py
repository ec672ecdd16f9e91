"""Window policies on the shipped configuration: its devices, its pairs, and ratios seed by seed."""

from __future__ import annotations

import pytest

from tandem.benchmarks.dsd.shipped import ALL, FUSED, PAIRS, Cell, Ratios, Run, cells, devices, seconds


def test_every_shipped_device_is_asked_by_each_pair() -> None:
    assert {cell.asked for cell in cells()} == {*devices(), ALL, FUSED}
    assert {cell.pair for cell in cells()} == set(PAIRS)


@pytest.mark.parametrize("pair", PAIRS)
def test_a_phone_is_left_alone_where_the_cloud_is_faster(pair: str) -> None:
    """The phone drafts 20 tokens/s; the target alone writes as many and more."""
    cell = Cell(pair, "pixel-7-pro", 1)
    static_s, awc_s, cloud_s = (
        seconds(Run(cell, window, 7, 4)) for window in ("static", "awc", "mode cloud")
    )
    assert cloud_s < awc_s < static_s


def test_ratios_are_of_the_same_seed() -> None:
    cell = Cell("real", "laptop", 1)
    found = {Run(cell, "static", 1, 1): 2.0, Run(cell, "static", 2, 1): 4.0}
    found |= {Run(cell, "awc", 1, 1): 1.0, Run(cell, "awc", 2, 1): 2.0}
    ratios = Ratios.of(found, "awc")
    assert ratios.by_cell[cell].mean == pytest.approx(-0.5)
    assert ratios.figures("awc") == {"awc_slower": 0, "awc_faster": 1, "awc_most": 0.5, "awc_least": 0.5}
