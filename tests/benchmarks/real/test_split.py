"""Mode split beside the whole model: its folders, its answers and its traffic."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tandem.benchmarks.real import live, split
from tandem.benchmarks.real.results import Answer
from tandem.engine import family
from tandem.engine.torch.split import bundle


def answer(mode: str, task: str, ids: list[int], seconds: float, **traffic: int) -> Answer:
    stats = {"cost": {"usd": 0.0}, "modes": {"split": traffic} if traffic else {}}
    raw = msgspec.Raw(json.dumps(stats).encode())
    return Answer("", "Vicuna", task, mode, "", ids, len(ids), seconds / 2, seconds, None, raw)


MOVED = {"up_bytes": 4000, "down_bytes": 1000, "rounds": 2, "drafted": 3, "accepted": 1, "chunks": 1}
ANSWERS = [
    answer(split.WHOLE, "0", [1, 2, 3, 4], 1.0),
    answer(split.SPLIT, "0", [1, 2, 3, 5], 2.0, **MOVED),
    answer(split.WHOLE, "1", [1, 2, 3, 4], 1.0),
    answer(split.SPLIT, "1", [1, 2, 3, 4], 4.0, **MOVED | {"up_bytes": 8000, "rounds": 3}),
]


def test_figures_compare_with_the_whole_model_and_count_what_was_moved() -> None:
    assert split.figures(ANSWERS) == {
        "split_same_tokens": 0.875,
        "split_x": 0.375,
        "split_up_kb": 6.0,
        "split_down_kb": 1.0,
    }
    assert split.figures([]) == {}
    assert split.rows(ANSWERS) == [["Vicuna", "2", "6.0", "1.0", "2.5", "3.0", "1.0"]]
    assert [row[1] for row in split.compared(ANSWERS).rows()] == [split.WHOLE, split.SPLIT]


def test_a_bundle_of_another_model_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle.write(family.path("small"), 1, tmp_path)
    cloud, device = split.settings(tmp_path, family.path("small"), 2)
    assert cloud["middle"]["engine"]["first"] == 1
    assert device["bundle"] == str(tmp_path)
    with pytest.raises(ValueError, match="was cut from the model"):
        split.settings(tmp_path, family.path("target"), 2)
    monkeypatch.setattr(live, "DATA", tmp_path)
    (tmp_path / "prompts").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()
    models = ["--models", str(tmp_path), "--target", "a", "--drafter", "b", "--device", "c"]
    with pytest.raises(SystemExit, match="--split: .*nowhere"):
        live.main([*models, "--split", str(tmp_path / "nowhere"), str(family.path("small"))])
