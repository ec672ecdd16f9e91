"""Tables of measured step times are read between their points, and files that are none are refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.simulator.hardware import TableTimer, UnknownHardware, table
from tandem.simulator.hardware.measured import FOLDER, MeasuredStep

STEPS = [  # 20 ms and 5 ms a position; a ms for each thousand pairs of a position and a cached token
    MeasuredStep(
        sequences,
        positions,
        cached,
        0.02 + 0.005 * sequences * positions + 1e-6 * sequences * positions * cached,
    )
    for sequences, positions, cached in [(1, 1, 100), (1, 1, 1000), (1, 5, 100), (4, 5, 100), (1, 64, 0)]
]
TIMER = TableTimer("m", "a machine", STEPS)


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        ((1, 1, 500), 0.0255),
        ((3, 3, 300), 0.0353),
        ((6, 2, 400), 0.0512),  # windows of three, each after 200 tokens
        ((64, 0, 0, [(64, 0)]), 0.34),
        ((33, 1, 100, [(32, 200)]), 0.1915),
        ((128, 0, 0, [(128, 0)]), 0.66),  # goes on as it rose
    ],
)
def test_steps_between_the_measured_ones_are_interpolated(work, seconds: float) -> None:
    assert TIMER.step_s(*work) == pytest.approx(seconds)


def test_its_own_error_is_what_a_table_holds_beside_positions_and_cached_tokens() -> None:
    assert TIMER.error() == pytest.approx(0)
    odd = MeasuredStep(5, 1, 100, 2 * TIMER.step_s(5, 5, 500))  # as many positions as (1, 5) has
    assert TableTimer("m", "a machine", [*STEPS, odd]).error() > 0.1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "truncated"),
        ('{"model": "m", "machine": "x", "steps": []}', "at least one"),
        ('{"model": "m", "machine": "x", "steps": [[1, 0, 5, 0.1]]}', "of a position or more"),
        ('{"model": "m", "machine": "x", "steps": [[1, 1, 5, 0.1]], "more": 1}', "unknown field `more`"),
    ],
)
def test_a_file_that_is_no_table_is_refused_by_its_name(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "t.json"
    file.write_text(text)
    with pytest.raises(UnknownHardware, match=f"t.json: .*{complaint}"):
        table(str(file))


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownHardware, match="no table 'abacus'; there are .*smollm2-135m.*or name a .json file"
    ):
        table("abacus")


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.json")))
def test_tandems_own_tables_say_what_they_were_measured_on(name: str) -> None:
    timer = table(name)
    assert timer.model == name
    assert "llama.cpp" in timer.machine
    assert timer.error() < 0.1
    assert timer.step_s(1, 1, 100) < timer.step_s(5, 1, 100) < 5 * timer.step_s(1, 1, 100)
