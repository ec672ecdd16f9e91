"""Sweeps; Ray is the one of all tests (fixture `cluster`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.simulator.config.errors import ConfigError
from tandem.simulator.runs.run import simulate
from tandem.simulator.runs.sweep import grid, sweep
from tandem.simulator.runs.tasks import ForeignFile, ray_map, resumable_map
from tests.simulator.configurations import raw

AXES = ["window.parameters.size=2,5", "devices.0.link.rtt_ms=10,40"]


def test_a_grid_holds_every_combination() -> None:
    variants = grid(raw(), AXES)
    assert len(variants) == 4
    assert {(c.window.parameters["size"], c.devices[0].link.rtt_ms) for _, c in variants} == {  # type: ignore[attr-defined]  # a field of each mode's
        (2, 10.0), (2, 40.0), (5, 10.0), (5, 40.0),
    }  # fmt: skip
    assert variants[1].settings == {"window.parameters.size": 2, "devices.0.link.rtt_ms": 40}
    for axis, complaint in (
        ("seed", "wants key=value"),
        ("seed=", "wants key=value"),
        ("sead=1,2", "sead: no such key, did you mean seed?"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            grid(raw(), [axis])


def test_a_comma_within_brackets_parts_nothing() -> None:
    first, second = grid(raw(), ["devices.0.link.rtt_trace=[[0, 10], [1, 20]],[[0, 30]]"])
    assert [len(v.config.devices[0].link.rtt_trace) for v in (first, second)] == [2, 1]
    assert first.settings == {"devices.0.link.rtt_trace": [[0, 10], [1, 20]]}


@pytest.mark.usefixtures("cluster")
def test_a_sweep_is_what_simulating_one_by_one_is_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    variants = grid(raw(), AXES)
    out = tmp_path / "sweep.jsonl"
    points = list(sweep(variants, out))
    assert len(points) == 4
    for point in points:
        (config,) = [variant.config for variant in variants if variant.settings == point.settings]
        assert point.summary == simulate(config).summary()
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:2]) + lines[2][:30])  # interrupted in the middle of a line
    again = list(sweep(variants, out))
    assert sorted(p.key for p in again) == sorted(p.key for p in points)
    assert {p.key for p in again[:2]} <= {p.key for p in points[:2]}  # those were not simulated again
    assert len(out.read_bytes().splitlines()) == 4
    changed = grid(raw(seed=99), AXES)
    assert not {p.key for p in sweep(changed, out)} & {p.key for p in points}


def _reciprocal(x: int) -> float:
    return 1 / x


@pytest.mark.usefixtures("cluster")
def test_an_error_in_a_task_is_raised_here() -> None:
    assert sorted(ray_map(_reciprocal, [1, 2, 4], chunk=2)) == [0.25, 0.5, 1.0]
    with pytest.raises(ZeroDivisionError):
        list(ray_map(_reciprocal, [1, 0]))


class Square(msgspec.Struct, frozen=True):
    root: int
    square: int


def _square(root: int) -> Square:
    return Square(root, root**2)


def squares(file: Path, *roots: int) -> list[Square]:
    items = {root: root for root in roots}
    return list(resumable_map(_square, items, lambda one: one.root, Square, file))


@pytest.mark.parametrize(
    "lines",
    [b"# my notes\n", b"my notes", b'{"root":1,"square":1}\nmine\n', b'{"root":1,"square":1}\n{"mine"'],
)
def test_a_file_of_somebody_else_is_left_as_it_is(tmp_path: Path, lines: bytes) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(lines)
    with pytest.raises(ForeignFile, match=r"notes.txt, line \d: .*name another file"):
        squares(file, 1)
    assert file.read_bytes() == lines


def test_every_point_is_a_task_and_kept_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks: list[int] = []

    def counted(function: Any, items: Any, chunk: int) -> Any:
        chunks.append(chunk)
        return map(function, items)

    monkeypatch.setattr("tandem.simulator.runs.tasks.ray_map", counted)
    points = sweep(grid(raw(), AXES), tmp_path / "sweep.jsonl")
    next(points)
    assert chunks == [1]
    assert len((tmp_path / "sweep.jsonl").read_bytes().splitlines()) == 1
