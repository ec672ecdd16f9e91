"""The command that cuts a model for devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.engine import family
from tandem.engine.config import EngineConfig
from tandem.engine.torch.split import bundle
from tandem.engine.torch.split.runner import load_outer
from tandem.training.split import main
from tests.engine.hub_server import reached


async def test_a_bundle_of_the_embedded_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["target", "--layers", "2", "--out", str(tmp_path / "out")])
    assert "2 of 12 layers of target" in capsys.readouterr().out
    engine = load_outer(tmp_path / "out", EngineConfig())
    assert engine.split == bundle.describe(family.path("target"), 2)
    await engine.close()


def test_what_cannot_be_cut_is_said_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="can have 1 to 11, not 12"):
        main(["target", "--layers", "12", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="no config.json"):
        main([str(tmp_path), "--layers", "2", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="there is no folder or GGUF file .*nowhere"):
        main([str(tmp_path / "nowhere"), "--layers", "2", "--out", str(tmp_path / "out")])


async def test_a_hub_s_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with reached(tmp_path, monkeypatch) as hub:
        folder = family.path("target")
        hub.repositories["org/whole"] = {file.name: file.read_bytes() for file in folder.iterdir()}
        main(["org/whole", "--layers", "2", "--out", str(tmp_path / "out")])
        assert "2 of 12 layers of whole" in capsys.readouterr().out
        with pytest.raises(SystemExit, match="a.gguf is a GGUF file.*Hugging Face folder"):
            main([str(tmp_path / "a.gguf"), "--layers", "2", "--out", str(tmp_path / "out")])
    engine = load_outer(tmp_path / "out", EngineConfig())
    assert engine.split == bundle.describe(folder, 2)
    await engine.close()


def test_help_suffices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for word in ("MODEL --layers m --out DIR", "checksum", "--adapter"):
        assert word in shown
