"""Programs that models write: run apart, and whatever they do wrong is a failure and nothing more."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tandem.benchmarks.real.sandbox import passes


def test_a_program_that_comes_to_its_end_passes() -> None:
    assert passes("import math\nfrom typing import List\nassert math.gcd(4, 6) == 2\nprint('x' * 100000)")


@pytest.mark.parametrize(
    "program",
    [
        "assert 1 == 2",
        "def f(:",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "import os; os.kill(os.getpid(), 9)",
        "x = bytearray(4 << 30)",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', ''])",
        "input()",
    ],
)
def test_what_goes_wrong_fails(program: str) -> None:
    assert not passes(program)


@pytest.mark.parametrize("program", ["while True: pass", "import time; time.sleep(1000)"])
def test_a_hanging_program_is_ended_in_time(program: str) -> None:
    began_s = time.monotonic()
    assert not passes(program, limit_s=1.0)
    assert time.monotonic() - began_s < 20


def test_a_forking_program_starts_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = f"import os\nif os.fork() == 0:\n    os.mkdir({str(mark)!r})\n    os._exit(0)\nos.wait()"
    assert not passes(child)
    assert not mark.exists()


@pytest.mark.parametrize(
    "write",
    [
        "open({path!r}, 'w').write('x')",
        "import os; os.open({path!r}, os.O_CREAT | os.O_WRONLY)",
        "import pathlib; pathlib.Path({path!r}).mkdir()",
    ],
)
def test_a_writing_program_writes_nothing(write: str, tmp_path: Path) -> None:
    path = str(tmp_path / "written")
    assert not passes(write.format(path=path))
    assert not Path(path).exists()
    kept = tmp_path / "kept"
    kept.write_text("text")
    assert not passes(f"import os; os.remove({str(kept)!r})")
    assert kept.read_text() == "text"


def test_a_program_sees_neither_environment_nor_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    assert passes("import os; assert 'SECRET' not in os.environ")
    assert passes(f"import sys; assert {str(Path.cwd())!r} not in sys.path; assert '' not in sys.path")
