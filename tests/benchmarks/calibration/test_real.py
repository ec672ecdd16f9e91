"""Live answers are simulated with their lengths, acceptances and settings, and compared by mode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.benchmarks.calibration import real
from tandem.benchmarks.real.live import LOSSLESS, settings
from tandem.benchmarks.real.recording import Recorded
from tandem.benchmarks.real.results import Answer
from tandem.simulator.hardware import TableTimer
from tandem.simulator.hardware.measured import MeasuredStep

STEP_S = {"target": 0.1, "drafter": 0.002, "other": 0.01}
"""A step's seconds, whatever its positions."""
TOKENS = 40
RECORDED = {("Vicuna", str(i)): Recorded("Vicuna", str(i), 30, "1" * 30) for i in range(2)}


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    for name, seconds in STEP_S.items():
        table = TableTimer(name, "a machine", [MeasuredStep(1, 1, 0, seconds)])
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(table))
    return tmp_path


def live_settings(suffix: str = ".gguf") -> dict[str, Any]:
    return settings("torch", 2, *(Path(f"models/{name}{suffix}") for name in STEP_S))


def answers(mode: str, first_s: float = 1.0, last_s: float = 5.0, **rounds: int) -> list[Answer]:
    stats = {"reader": {"rate": 5.0}, "modes": {"speculative": rounds} if rounds else {}}
    raw = msgspec.Raw(msgspec.json.encode(stats))
    key = json.dumps(live_settings())
    return [
        Answer(key, "Vicuna", task, mode, "", [], TOKENS, first_s, last_s, None, raw) for task in ("0", "1")
    ]


def figures(mode: str, tables: Path, **rounds: int) -> real.Figures:
    (one,) = real.compared(live_settings(), {mode: answers(mode, **rounds)}, RECORDED, tables)
    assert (one.case, one.live) == (mode, {"ttft": 1.0, "rate": TOKENS / 5.0})
    return one.simulated


def test_the_cloud_takes_its_tables_steps(tables: Path) -> None:
    seen = figures("cloud", tables)
    assert seen["ttft"] == pytest.approx(STEP_S["target"], rel=0.05)  # the prompt is one chunk
    assert seen["rate"] == pytest.approx(1 / STEP_S["target"], rel=0.05)


def test_the_device_takes_those_of_its_own_model_and_its_link(tables: Path) -> None:
    seen = figures("device", tables)
    assert seen["ttft"] == pytest.approx(STEP_S["other"] + 2 * 0.020)  # it opens, then it answers
    assert seen["rate"] == pytest.approx(TOKENS / (0.020 + TOKENS * STEP_S["other"]), rel=0.05)


@pytest.mark.parametrize("mode", real.SIMULATED)
def test_every_mode_has_what_it_needs(mode: str, tables: Path) -> None:
    assert figures(mode, tables, drafted=4, accepted=2)["rate"] > 0


@pytest.mark.parametrize("mode", LOSSLESS)
def test_drafts_are_accepted_as_recorded_or_as_often_as_the_run_says(mode: str) -> None:
    found = real.acceptance(
        answers(mode, drafted=400, accepted=100), RECORDED, foreign=mode == "between vocabularies"
    )
    assert [len(one) for one in found] == [TOKENS] * 2
    shares = [sum(one) / TOKENS for one in found]
    if mode == "between vocabularies":
        assert 0.05 < sum(shares) / 2 < 0.45
    else:
        assert shares == [1.0, 1.0]  # the recording ends before the answers do


def written(file: Path, found: Sequence[Answer]) -> Path:
    file.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in found))
    return file


def test_errors_are_those_of_the_last_runs_medians(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = figures("cloud", tables)
    older = [msgspec.structs.replace(one, settings="{}") for one in answers("cloud", 9.0, 99.0)]
    mine = answers("cloud", 2 * simulated["ttft"], 2 * TOKENS / simulated["rate"])
    unknown = msgspec.structs.replace(mine[0], task="7", first_s=50.0)  # of which nothing is recorded
    left_out = [msgspec.structs.replace(one, settings="[]") for one in answers("split", 50.0, 60.0)]
    file = written(tmp_path / "real.jsonl", [*older, unknown, *mine, *left_out])
    assert real.errors(file, list(RECORDED.values()), tables) == {
        "real_ttft_error": pytest.approx(0.5, abs=1e-3),
        "real_rate_error": pytest.approx(1.0, abs=1e-3),
    }
    assert "split" not in capsys.readouterr().out


def test_a_run_of_another_engine_is_refused(tables: Path) -> None:
    with pytest.raises(ValueError, match="none of an engine of kind torch"):
        real.topology(live_settings(""), "cloud", tables)
