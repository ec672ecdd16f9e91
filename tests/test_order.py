"""A folder's fixtures are there whatever files of other folders are named between its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIXTURE = "import pytest\n@pytest.fixture\ndef widget():\n    return 1\n"
TEST = "def test_it(widget):\n    assert widget == 1\n"


def test_a_folders_fixtures_survive_other_files(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text("from tests.order import pytest_configure\n")
    (tmp_path / "test_above.py").write_text("def test_it():\n    pass\n")
    (below / "conftest.py").write_text(FIXTURE)
    for name in ("test_a.py", "test_b.py"):
        (below / name).write_text(TEST)
    options = ["-q", "--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:xdist"]
    named = ["below/test_b.py::test_it", "test_above.py", "below/test_a.py"]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *named],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "3 passed" in found.stdout, found.stdout
