"""Exactly the processes that one program started: found by descent, told apart by pid and start time."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36


class Process(NamedTuple):
    """started: in clock ticks since boot, so that a pid that is used again is another process."""

    pid: int
    started: int


def adopt_orphans() -> None:
    """Make descendants whose parent dies children of this process, so that none is lost."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def myself() -> Process:
    """Return this process."""
    return Process(os.getpid(), _read(os.getpid())[1])


def descendants(pid: int | None = None) -> list[Process]:
    """Return the living processes that descend from that one, by default from this one."""
    children: dict[int, list[Process]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent, started, state = _read(int(entry.name))
            if state != "Z":
                children[parent].append(Process(int(entry.name), started))
    found, queue = [], [os.getpid() if pid is None else pid]
    while queue:
        mine = children.pop(queue.pop(), [])
        found += mine
        queue += [process.pid for process in mine]
    return found


def alive(process: Process) -> bool:
    """Return whether it is still that process, and not a zombie."""
    _, started, state = _read(process.pid)
    return started == process.started and state != "Z"


def end(processes: Iterable[Process], patience_s: float = 3.0) -> list[Process]:
    """Send SIGTERM, after `patience_s` seconds SIGKILL; return those that still live."""
    left = [process for process in processes if alive(process)]
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            if alive(process):
                with suppress(ProcessLookupError):  # it has ended since
                    os.kill(process.pid, sign)
        deadline = time.monotonic() + patience_s
        while (left := [p for p in left if alive(p)]) and time.monotonic() < deadline:
            time.sleep(0.05)
    return left


def collect(processes: Iterable[Process]) -> None:
    """Take leave of dead children, adopted ones included, which stay in the process table otherwise."""
    for process in processes:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)


def _read(pid: int) -> tuple[int, int, str]:
    """(parent, start time, state) of a process; parent -1 if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return -1, -1, "X"
    return int(fields[1]), int(fields[19]), fields[0]
