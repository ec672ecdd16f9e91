"""The command: from a target to a change, its report, and a folder with the change in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.engine.family import path
from tandem.training.sketch.__main__ import main

SMALL = ["--target", str(path("small"))]
JUDGED = ["--questions", "3", "--threads", "1"]
LITTLE = ["--rank", "2", "--shortened", "4", "--words", "1"]
LITTLE += ["--imitate", "4", "--pairs", "12", "--reward", "2", "--reinforce", "1"]


@pytest.mark.slow
def test_what_misses_the_bar_leaves_a_report_alone(tmp_path: Path) -> None:
    """Four steps do not shorten anything by a tenth."""
    main(["tune", *SMALL, *JUDGED, *LITTLE, "--out", str(tmp_path / "missed.safetensors")])
    assert [file.name for file in tmp_path.iterdir()] == ["missed.json"]
    report = json.loads((tmp_path / "missed.json").read_text())
    assert report["changes"]["bar_met"] is False
    assert report["training"]["scored_pairs"] > 0
    assert report["figures"].keys() == {"before", "supervised", "after"}


@pytest.mark.nightly
def test_the_same_options_give_the_same_change_which_can_be_judged_and_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tandem.training.sketch.__main__.compare", lambda before, after: {"bar_met": True})
    first, again = (tmp_path / f"{name}.safetensors" for name in ("first", "again"))
    for file in (first, again):
        main(["tune", *SMALL, *JUDGED, *LITTLE, "--out", str(file)])
    assert first.read_bytes() == again.read_bytes()
    tuned = json.loads(first.with_suffix(".json").read_text())["figures"]["after"]
    merged = tmp_path / "merged"
    main(["merge", *SMALL, str(merged), "--delta", str(first)])
    capsys.readouterr()
    main(["evaluate", *SMALL, *JUDGED, "--delta", str(first)])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]["after"] == tuned
    assert (merged / "tokenizer.json").exists()


@pytest.mark.parametrize("words", [["evaluate"], ["merge", "OUT"]])
def test_what_cannot_be_done_is_said_in_a_line(words: list[str], tmp_path: Path) -> None:
    given = [str(tmp_path / "out") if word == "OUT" else word for word in words]
    with pytest.raises(SystemExit, match=r"nothing\.safetensors"):
        main([*given, *SMALL, "--delta", str(tmp_path / "nothing.safetensors")])


def test_help_suffices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tune", "--help"])
    shown = capsys.readouterr().out
    for word in ("--out", "--expander", "--b1", "--gamma", "weight of ROUGE-1", "that a note may lose"):
        assert word in shown
