"""The page's sources: their types, and that what it takes from others is theirs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_types_hold_and_packages_are_unchanged() -> None:
    """Run where npm's registry can be reached."""
    done = subprocess.run(["make", "page"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode and not (ROOT / "app/page/node_modules/installed").exists():
        pytest.skip(f"the packages cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    assert not done.returncode, done.stdout + done.stderr
