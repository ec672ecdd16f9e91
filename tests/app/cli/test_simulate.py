"""`tandem simulate` and `tandem sweep`, as they are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tandem.app.cli.main import cli
from tandem.app.cli.server.local_ray import LocalRay
from tests.simulator.configurations import raw

EXAMPLES = sorted((Path(__file__).parents[3] / "simulator" / "examples").glob("*.yaml"))
run = CliRunner().invoke


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(raw()))
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


def test_readers_costs_budgets_and_failures_are_shown(file: Path, tmp_path: Path) -> None:
    changes = {
        "workload.readers": "[[1.0, 20]]",
        "mode": "race",
        "accounts.exchange_rate": "1.0",
        "devices.0.power_w": "5",
        "engine.max_sessions": "1",
        "engine.max_waiting": "0",
        "workload.arrival.rate_per_s": "100",
        "targets.0.count": "1",
        "workload.count": "30",
    }
    out = tmp_path / "results.json"
    settings = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    result = run(cli, ["simulate", str(file), "--out", str(out), *settings])
    assert result.exit_code == 0, result.output
    said, summary = " ".join(result.output.split()), json.loads(out.read_bytes())["summary"]
    reading = summary["reading"]
    assert f"{reading['stalled_share']:.1%} of answers stalled" in said
    assert f"QoS {reading['qos']:.2f}/s" in said
    assert f"cost {summary['usd']:.4g} USD, devices {summary['device_joules']:.4g} J" in said
    assert f"the device took in {summary['budgets']['device']['share']:.1%}" in said
    assert summary["failed"] > 0
    assert f"{summary['failed']} requests failed: {summary['failed']} overloaded" in said
    assert "replan" not in said


def test_settings_take_the_place_of_the_files(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    changes = ["--set", "workload.count=5", "--set", "window={name: dynamic}"]
    assert run(cli, ["simulate", str(file), "--out", str(out), *changes]).exit_code == 0
    document = json.loads(out.read_bytes())
    assert document["summary"]["requests"] == 5
    assert document["config"]["window"]["name"] == "dynamic"


def test_how_sure_times_are_is_said(file: Path) -> None:
    result = run(cli, ["simulate", str(file), "--set", "targets=[{hardware: V100, model: Llama-3.1-8B}]"])
    said = " ".join(result.output.split())
    assert "V100 Llama-3.1-8B: without any table: head ± 11%, dense ± 11%" in said
    assert "assumed: host" in said
    assert "batching chunked chunk 2048" in said


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("workload.count=0", "workload.count: should be greater than or equal to 1, not 0"),
        ("window.name=oracle", "there are: awc, awc-paper, dynamic, gain, static"),
        ("devices.0.colour=red", "devices.0.colour: no such key"),
        ("window={name: static, parameters: {size: 0}}", "window size must be at least 1"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_a_line(file: Path, change: str, named: str) -> None:
    result = run(cli, ["simulate", str(file), "--set", change])
    assert result.exit_code == 1
    assert named in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_a_sweep_shows_every_combination_and_keeps_it(file: Path, tmp_path: Path, cluster: LocalRay) -> None:
    out = tmp_path / "sweep.jsonl"
    vary = ["--vary", "window={name: static},{name: dynamic}", "--vary", "workload.count=4,6"]
    first = run(cli, ["sweep", str(file), *vary, "--out", str(out)])
    assert first.exit_code == 0, first.output
    points = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert sorted(point["summary"]["requests"] for point in points) == [4, 4, 6, 6]
    kept = out.read_bytes()
    assert run(cli, ["sweep", str(file), *vary, "--out", str(out)]).exit_code == 0
    assert out.read_bytes() == kept  # nothing was simulated again
    rows = [line.split("\t") for line in first.output.splitlines() if "\t" in line]
    assert rows[0][:3] == ["window", "workload.count", "requests/s"]
    assert [row[1] for row in rows[1:]] == ["4", "6", "4", "6"], "in the order of the axes"


def test_a_sweep_is_drawn(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The varied settings are this sweep's, even if the file knows the simulation by other settings."""
    monkeypatch.setattr(
        "tandem.simulator.runs.tasks.ray_map", lambda function, items, chunk: map(function, items)
    )
    drawn = list[tuple[dict[str, Any], int]]()
    monkeypatch.setattr(
        "tandem.app.cli.simulate.plot_sweep",
        lambda points, name, path: drawn.extend((set_, s["requests"]) for set_, s in points),
    )
    out, picture = ["--out", str(tmp_path / "sweep.jsonl")], ["--plot", str(tmp_path / "sweep.svg")]
    assert run(cli, ["sweep", str(file), "--vary", "seed=3", *out]).exit_code == 0
    result = run(cli, ["sweep", str(file), "--vary", "workload.count=14,12", *out, *picture])
    assert result.exit_code == 0, result.output
    assert drawn == [({"workload.count": 14}, 14), ({"workload.count": 12}, 12)]


def test_a_map_says_which_mode_is_the_best_where(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tandem.simulator.runs.tasks.ray_map", lambda function, items, chunk: map(function, items)
    )
    out, picture = tmp_path / "map.jsonl", tmp_path / "map.svg"
    axes = ["--map", "devices.0.link.rtt_ms=10,300", "--objective", "fast"]
    result = run(cli, ["simulate", str(file), *axes, "--out", str(out), "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    rows = [line.split("\t") for line in result.output.splitlines() if "\t" in line]
    assert rows[0][:4] == ["devices.0.link.rtt_ms", "best mode", "TTFT ms", "TPOT ms"]
    assert [row[0] for row in rows[1:]] == ["10", "300"]
    best = {row[1] for row in rows[1:]}
    assert best <= {"cloud", "device", "speculative", "race", "sketch"}
    assert "objective fast" in result.output
    assert picture.exists()
    wrong = run(cli, ["simulate", str(file), *axes[:3], "quick"])
    assert wrong.exit_code == 1
    assert "objective: one of balanced" in " ".join(wrong.output.split())
    alone = run(cli, ["simulate", str(file), "--objective", "fast"])
    assert alone.exit_code == 1
    assert "name what varies with --map" in " ".join(alone.output.split())


def test_a_sweep_changes_settings_of_all_its_simulations(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tandem.simulator.runs.tasks.ray_map", lambda function, items, chunk: map(function, items)
    )
    out = ["--out", str(tmp_path / "sweep.jsonl")]
    vary, fixed = ["--vary", "window={name: static},{name: dynamic}"], ["--set", "workload.count=5"]
    result = run(cli, ["sweep", str(file), *vary, *fixed, *out])
    assert result.exit_code == 0, result.output
    points = [json.loads(line) for line in (tmp_path / "sweep.jsonl").read_bytes().splitlines()]
    assert [(p["settings"].keys(), p["summary"]["requests"]) for p in points] == [
        ({"window": None}.keys(), 5)
    ] * 2
    assert '{"name": "static"}\t' in result.output
    refused = run(cli, ["sweep", str(file), *vary, "--set", "workload.cuont=5", *out])
    assert (refused.exit_code, "did you mean count" in refused.output) == (1, True)


@pytest.mark.parametrize("command", [["simulate"], ["sweep", "--vary", "seed=1"]])
def test_a_picture_of_an_unknown_kind_is_refused_before_anything_is_simulated(
    file: Path, command: list[str]
) -> None:
    result = run(cli, [*command, str(file), "--plot", "picture.jpeg"])
    assert result.exit_code == 2
    assert "should end in .png, .svg or .pdf" in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_run(path: Path) -> None:
    result = run(cli, ["simulate", str(path), "--set", "workload.count=20"])
    assert result.exit_code == 0, result.output
    assert "20 requests at" in result.output
