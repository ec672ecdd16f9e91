"""The command: from a model and a corpus to a file, a report and figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tandem.engine import family
from tandem.engine.torch.split import bundle
from tandem.training.adapter.__main__ import main
from tandem.training.adapter.texts import HELD
from tests.engine.torch import tiny

LITTLE = [
    "--layers",
    "1",
    "--steps",
    "6",
    "--batch",
    "256",
    "--length",
    "64",
    "--questions",
    "2",
    "--eta",
    "0.6",
]


@pytest.mark.slow
def test_a_training_and_its_report(
    tiny_model: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal seeds give equal files, others do not; `evaluate` agrees with the report."""
    files = []
    for name, seed in (("first", "1"), ("again", "1"), ("other", "2")):
        files.append(tmp_path / f"{name}.safetensors")
        main([str(tiny_model), "--corpus", str(corpus), "--out", str(files[-1]), "--seed", seed, *LITTLE])
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()
    assert all(tensor.dtype is torch.bfloat16 for tensor in load_file(files[0]).values())
    report = json.loads(files[0].with_suffix(".json").read_text())
    assert report["checksum"] == bundle.checksum(tiny_model)
    assert report["training"]["corpus"] == "corpus.jsonl"
    assert report["figures"]["questions"]["questions"] == 2
    capsys.readouterr()
    few = ["--layers", "1", "--length", "64", "--questions", "2", "--eta", "0.6"]
    main(["evaluate", str(tiny_model), "--corpus", str(corpus), "--adapter", str(files[0]), *few])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["figures"] == report["figures"]
    held = corpus.with_name("held.jsonl")
    held.write_text("\n".join(corpus.read_text().splitlines()[::HELD]))
    main(["evaluate", str(tiny_model), "--judge", str(held), "--adapter", str(files[0]), *few])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["figures"] == {
        "held": report["figures"]["questions"]
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["MODEL", "--corpus", "FILE"], "where to.*--out"),
        (["evaluate", "MODEL", "--corpus", "FILE"], "which adapter.*--adapter"),
        (["MODEL", "--out", "OUT"], "give --corpus"),
        (["MODEL", "--out", "OUT", "--corpus", "FILE", "--layers", "4"], "can have 1 to 3, not 4"),
        (["MODEL", "--out", "OUT", "--corpus", "nowhere"], "nowhere"),
        (["evaluate", "MODEL", "--adapter", "nowhere", "--corpus", "FILE"], "nowhere"),
        (["GEMMA", "--out", "OUT", "--corpus", "FILE"], "layers are alike"),
        (["MODEL", "--out", "OUT", "--corpus", "OPEN", "--layers", "1"], "adapter answers"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    words: list[str], said: str, tiny_model: Path, corpus: Path, tmp_path: Path
) -> None:
    tiny.make("gemma3", tmp_path)
    known = {"MODEL": str(tiny_model), "FILE": str(corpus), "OUT": str(tmp_path / "a.safetensors")}
    known["GEMMA"] = str(tmp_path)
    known["OPEN"] = str(tmp_path / "open.jsonl")
    (tmp_path / "open.jsonl").write_text('{"question": "Who?"}\n{"question": "Where?"}\n')
    with pytest.raises(SystemExit, match=said):
        main([known.get(word, word) for word in words])


def test_help_suffices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for word in ("MODEL", "--layers m", "--out FILE", "--steps", "--loss", "--seed", "--corpus", "question"):
        assert word in shown
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    assert "--adapter FILE" in capsys.readouterr().out


def test_the_familys_adapter_or_how_to_make_it() -> None:
    assert family.adapter().exists()
    with pytest.raises(FileNotFoundError, match="tandem adapter small --layers 1"):
        family.adapter("small", 1)
