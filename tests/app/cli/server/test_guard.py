"""Guard: a program's descendants end with it, however it ends, and no other process does."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tandem.app.cli.server.guard import ours

PROGRAM = """
import subprocess, sys
from pathlib import Path
from tandem.app.cli.server.guard import guarded
folder = Path(sys.argv[1])
with guarded(folder), (folder / "mine").open("w"):
    # As daemons: nobody's children, and in no session that one could signal. The second has lost its mark.
    subprocess.Popen(["sh", "-c", "setsid sleep 600 &"]).wait()
    subprocess.Popen(["sh", "-c", f"env -i setsid sleep 600 > {folder}/log &"]).wait()
    print("started", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_it_leaves_nothing_and_touches_nobody_else(tmp_path: Path, killed: bool) -> None:
    folder, other = tmp_path / "one", tmp_path / "other"
    for each in (folder, other):
        each.mkdir()
        (each / "file").touch()
    command = [sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    with (
        (folder / "file").open() as reader,  # who reads, as `tail` does, is not among them
        subprocess.Popen([*command, str(folder)], stdin=pipe, stdout=pipe) as program,
        subprocess.Popen([*command, str(other)], stdin=pipe, stdout=pipe) as bystander,
    ):
        for started in (program, bystander):
            assert started.stdout is not None
            assert started.stdout.readline() == b"started\n"
        assert len(set(ours(str(folder))) - {program.pid}) == 2
        if killed:
            program.kill()
        else:
            program.communicate(timeout=90)
            assert program.returncode == 0
        deadline = time.monotonic() + 90
        while list(ours(str(folder))) or folder.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert len(set(ours(str(other))) - {bystander.pid}) == 2
        assert other.exists()
        assert bystander.poll() is None
        bystander.communicate(timeout=90)
        assert not reader.read()
