"""The end of everything that a program started, should the program be killed.

What Ray starts watches itself whether Ray lives, and may notice late, or never where the dead stay in the process
table. A guard is a process of its own: when the program's end of a pipe closes, however that came, the guard kills what
is the program's and removes its folder. It needs nothing but Python, and dies last.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "TANDEM_FOLDER"
"""The environment variable with which processes are told apart; children inherit it."""
PATIENCE_S = 30.0
"""Seconds after which processes that cannot be killed, as when they wait for a lost disk, are left."""


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """End what this process starts inside, and its descendants, at the end or with this process; remove `folder`."""
    command = [sys.executable, "-IS", __file__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as guard:
        os.environ[MARK] = str(folder)
        try:
            yield
        finally:
            del os.environ[MARK]
            assert guard.stdin is not None
            guard.stdin.close()


def ours(folder: str) -> Iterator[int]:
    """Yield the pids of living processes that carry the mark, or write to a file in `folder`: processes that rename
    themselves, as Ray's agents do, may overwrite the mark."""
    mark = f"{MARK}={folder}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended, or belongs to another user
                if mark in (entry / "environ").read_bytes().split(b"\0") or _writes(entry / "fd", folder):
                    yield int(entry.name)


def _writes(descriptors: Path, folder: str) -> bool:
    """Whether a file in `folder` is among them that is open for writing."""
    for each in descriptors.iterdir():
        with suppress(FileNotFoundError):  # closed since
            if each.lstat().st_mode & stat.S_IWUSR and str(each.readlink()).startswith(f"{folder}/"):
                return True
    return False


def main(folder: str) -> None:
    """Waits for the end of who started it."""
    starter = os.getppid()
    sys.stdin.read()
    deadline = time.monotonic() + PATIENCE_S
    while (left := set(ours(folder)) - {starter}) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
