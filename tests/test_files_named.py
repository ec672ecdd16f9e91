"""A folder's fixtures are there whatever files of other folders are named before, between and behind its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FIXTURE = "import pytest\n@pytest.fixture\ndef widget():\n    return 1\n"
TEST = "def test_it(widget):\n    assert widget == 1\n"


def test_a_folders_fixtures_survive_other_files(tmp_path: Path) -> None:
    """pytest 9.1 loses them behind a file of a folder above (pytest-dev/pytest#14964)."""
    below = tmp_path / "below"
    below.mkdir()
    (below / "conftest.py").write_text(FIXTURE)
    (tmp_path / "test_above.py").write_text("def test_it():\n    pass\n")
    for name in ("test_a.py", "test_b.py"):
        (below / name).write_text(TEST)
    named = ["below/test_a.py", "test_above.py", "below/test_b.py"]
    options = ["-q", "-c", "none.ini", "--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:xdist"]
    (tmp_path / "none.ini").write_text("[pytest]\n")
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *named], cwd=tmp_path, capture_output=True, text=True
    )
    assert "3 passed" in found.stdout, found.stdout
