"""The public package: what `import tandem` offers, and what it does not bring along."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tandem


def test_every_public_name_is_there() -> None:
    assert all(getattr(tandem, name) is not None for name in tandem.__all__)
    assert set(tandem.__all__) <= set(dir(tandem))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tandem.nothing


def test_neither_ray_nor_torch_comes_with_it() -> None:
    asked = "; ".join(
        f"tandem.{name}" for name in tandem.__all__ if name not in {"start", "Server", "UpError"}
    )
    code = f"import sys, tandem; {asked}; print({{'ray', 'torch'}} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.strip() == "set()"


def test_a_mode_is_decided_with_public_names_alone() -> None:
    race = tandem.race
    known, ttft = race.Lengths([20, 40, 80]), race.Latencies([0.3, 0.5])
    state = race.DispatchState(20, known, ttft, 0.5, race.Side.SERVER, 0.5)
    assert isinstance(tandem.policy("dispatch", "disco").choose(state), race.Start)


def test_every_name_of_a_public_module_is_there() -> None:
    modules = [tandem.hardware, tandem.race, tandem.reader, tandem.sketch, tandem.split]
    assert [(m.__name__, n) for m in modules for n in m.__all__ if not hasattr(m, n)] == []
    assert tandem.models.path("target").is_dir()


def test_policies_by_name() -> None:
    assert "awc" in tandem.families()["window"]
    assert tandem.policy("window", "static", size=3) is not None
    with pytest.raises(tandem.UnknownPolicy, match="no window policy 'x'; there are: "):
        tandem.policy("window", "x")
    with pytest.raises(tandem.UnknownPolicy, match="no family of policies 'x'"):
        tandem.policy("x", "static")


@pytest.mark.slow
def test_it_is_found_wherever_one_stands(tmp_path) -> None:
    """The folders' own names are importable in a checkout alone."""
    code = "import tandem.app.main, tandem.simulator.runs.run"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
