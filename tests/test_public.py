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
    code = "import sys, tandem; tandem.simulate; print({'ray', 'torch'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.strip() == "set()"


def test_policies_by_name() -> None:
    assert "awc" in tandem.families()["window"]
    assert tandem.policy("window", "static", size=3) is not None
    with pytest.raises(tandem.UnknownPolicy, match="no window policy 'x'; there are: "):
        tandem.policy("window", "x")
    with pytest.raises(tandem.UnknownPolicy, match="no family of policies 'x'"):
        tandem.policy("x", "static")


def test_it_is_found_wherever_one_stands(tmp_path) -> None:
    """The folders' own names are importable in a checkout alone."""
    code = "import tandem.app.main, tandem.simulator.runs.run"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
