"""`tandem models`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tandem.app.cli.main import cli
from tandem.deployments.pools.models import model_folder
from tandem.engine import family
from tandem.engine.models.model_folder import engine_kinds
from tandem.engine.text.tokenizer import Tokenizer
from tests.engine.gguf.files import byte_level, write
from tests.engine.hub_server import Hub, commit_of, reached
from tests.engine.llamacpp.family_gguf import write as write_family

run = CliRunner().invoke


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with reached(tmp_path, monkeypatch) as hub:
        yield hub


def listed() -> dict[str, dict[str, Any]]:
    """Return what `tandem models --json` says, by name."""
    said = run(cli, ["models", "--json"])
    assert said.exit_code == 0, said.output
    return {model["name"]: model for model in json.loads(said.stdout)}


def test_the_embedded_family_is_always_there(server: Hub) -> None:
    found = listed()
    assert set(found) == set(family.NAMES)
    target, tiny, other = found["target"], found["tiny"], found["other"]
    assert target == {
        "name": "target",
        "path": str(family.path("target")),
        "size_bytes": sum(file.stat().st_size for file in family.path("target").iterdir()),
        "architecture": "LlamaForCausalLM",
        "weights": "bfloat16",
        "context": 1024,
        "vocabulary": Tokenizer.load(family.path("target")).vocabulary,
        "engines": ["torch", "vllm"],
        "roles": ["target", "device", "split"],
        "problem": None,
    }
    assert tiny["vocabulary"] == target["vocabulary"] != other["vocabulary"]
    assert tiny["roles"] == ["target", "drafter", "device"]  # one layer
    assert other["roles"] == ["target", "device", "split"]


def test_what_was_fetched_or_used_is_listed(server: Hub, tmp_path: Path) -> None:
    large = write(tmp_path / "large.gguf", byte_level(), {"token_embd.weight": (640, 640)})
    model_folder(str(large))
    cut_off = write(tmp_path / "short.gguf", byte_level())
    model_folder(str(cut_off))
    cut_off.write_bytes(cut_off.read_bytes()[:-5])
    for name in ("org/whole", "org/gguf:Q8_0", "org/whole@v1"):
        assert run(cli, ["models", "fetch", name]).exit_code == 0
    found = listed()
    assert set(found) - set(family.NAMES) == {
        "org/whole",
        "org/gguf/a-Q8_0-00001-of-00002.gguf",
        str(large),
        str(cut_off),
    }
    part = found["org/gguf/a-Q8_0-00001-of-00002.gguf"]
    assert (part["engines"], part["weights"], part["context"]) == (["llamacpp"], "Q4_K_M", 512)
    assert part["roles"] == ["target", "drafter", "device"]
    assert part["size_bytes"] == 2 * Path(part["path"]).stat().st_size + 1
    assert part["vocabulary"] == found["org/whole"]["vocabulary"] == found[str(large)]["vocabulary"]
    assert found[str(large)]["roles"] == ["target", "device"]
    assert "cut off" in found[str(cut_off)]["problem"]
    assert (found[str(cut_off)]["engines"], found[str(cut_off)]["roles"]) == ([], [])
    rows = run(cli, ["models"]).stdout.splitlines()
    assert rows[0].split("\t")[:2] == ["model", "size"]
    assert any(row.startswith("org/whole\t") for row in rows)


def test_fetching_says_where_the_model_is_or_why_not(server: Hub) -> None:
    said = run(cli, ["models", "fetch", "org/whole"])
    assert Path(said.stdout.strip()).name == commit_of("org/whole")
    for name, why in (
        ("org/none", "no model of that name"),
        ("org/bin", "no *.safetensors"),
        ("target", "no name of a hub's model"),
    ):
        refused = run(cli, ["models", "fetch", name])
        assert (refused.exit_code, why in refused.stderr) == (1, True), refused.stderr


@pytest.mark.parametrize("name", ["org/whole", "org/whole@main", "org/gguf/a-Q4_K_M.gguf", "org/gguf:Q8_0"])
def test_removing(server: Hub, name: str) -> None:
    run(cli, ["models", "fetch", name])
    run(cli, ["models", "fetch", "org/other"])
    removed = run(cli, ["models", "remove", name])
    assert (removed.exit_code, "freed" in removed.stdout) == (0, True)
    assert set(listed()) == {*family.NAMES, "org/other"}
    again = run(cli, ["models", "remove", name])
    assert (again.exit_code, again.stderr) == (1, f"tandem: {name} is not in the hub's cache\n")


def test_a_gguf_file_becomes_a_folder(tmp_path: Path) -> None:
    file, folder = write_family("tiny", tmp_path / "tiny.gguf"), tmp_path / "folder"
    said = run(cli, ["models", "convert", str(file), str(folder), "--dtype", "float32"])
    assert (said.exit_code, said.stdout) == (0, f"{folder}\n"), said.output
    assert engine_kinds(folder) == ("torch", "vllm")
    again = run(cli, ["models", "convert", str(file), str(folder)])
    assert again.exit_code == 1
    assert f"{folder} is there already" in again.output
    assert "tiny is no GGUF file" in run(cli, ["models", "convert", "tiny", str(tmp_path / "other")]).output
