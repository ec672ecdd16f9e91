"""`tandem simulate` and `tandem sweep`, as they are called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from app.cli import cli
from app.local_ray import LocalRay
from tests.cluster.simulator.configurations import raw

EXAMPLES = sorted((Path(__file__).parents[2] / "cluster" / "simulator" / "examples").glob("*.yaml"))
run = CliRunner().invoke


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(raw(policies={})))
    return path


def test_a_simulation_is_shown_written_and_drawn(file: Path, tmp_path: Path) -> None:
    out, picture = tmp_path / "results.json", tmp_path / "results.png"
    result = run(cli, ["simulate", str(file), "--out", str(out), "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    assert "12 requests at" in result.output
    assert "simulated time" in result.output
    document = json.loads(out.read_bytes())
    assert (document["times"], document["summary"]["finished"], len(document["requests"])) == (
        "simulated",
        12,
        12,
    )
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_settings_take_the_place_of_the_files(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    changes = ["--set", "workload.count=5", "--set", "policies.window.name=dynamic"]
    assert run(cli, ["simulate", str(file), "--out", str(out), *changes]).exit_code == 0
    document = json.loads(out.read_bytes())
    assert document["summary"]["requests"] == 5
    assert document["config"]["policies"]["window"]["name"] == "dynamic"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("workload.count=0", "count must be at least 1"),
        ("policies.window.name=oracle", "there are: awc, dynamic, static"),
        ("drafters.0.colour=red", "colour"),
        ("policies.window={name: static, parameters: {size: 0}}", "window size must be at least 1"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_a_line(file: Path, change: str, named: str) -> None:
    result = run(cli, ["simulate", str(file), "--set", change])
    assert result.exit_code == 1
    assert named in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_a_sweep_shows_every_combination_and_keeps_it(file: Path, tmp_path: Path, cluster: LocalRay) -> None:
    out = tmp_path / "sweep.jsonl"
    vary = ["--vary", "policies.window.name=static,dynamic", "--vary", "workload.count=4,6"]
    first = run(cli, ["sweep", str(file), *vary, "--out", str(out)])
    assert first.exit_code == 0, first.output
    points = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert sorted(point["summary"]["requests"] for point in points) == [4, 4, 6, 6]
    kept = out.read_bytes()
    assert run(cli, ["sweep", str(file), *vary, "--out", str(out)]).exit_code == 0
    assert out.read_bytes() == kept  # nothing was simulated again


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_run(path: Path) -> None:
    result = run(cli, ["simulate", str(path), "--set", "workload.count=20"])
    assert result.exit_code == 0, result.output
    assert "20 requests at" in result.output
