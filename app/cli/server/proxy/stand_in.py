"""A stand-in for a HAProxy that dies.

Ray Serve takes half a minute to notice that its HAProxy is gone, and to start another one. Until then a second one with
the same configuration answers clients: this program waits beside each HAProxy, kills one that is stopped or hangs,
starts the second one if nobody has taken over when the first is gone, and ends it when Ray's new one is there. It needs
nothing but Python.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

LOOK_S = 0.2
"""Seconds between two looks at whether a new HAProxy is there."""
ALONE_S = 20.0
"""Seconds after the end of Ray's proxy within which its successor starts, or none will."""
ANSWER_S = 0.75
"""Longest that a HAProxy may take to say that it is there; it takes less than a millisecond."""
SILENT = 2
"""Times in a row that a HAProxy does not answer before it is killed: it is stopped, or hangs, as do its clients."""
_PR_SET_PDEATHSIG = 1
_PID = re.compile(rb"^Pid: (\d+)", re.MULTILINE)
_SOCKET = re.compile(r"^ *stats socket (\S+).*\n", re.MULTILINE)


def watch(haproxy: int, proxy: int, binary: str, folder: str, name: str, *options: str) -> None:
    """Return when a HAProxy needs no stand-in, or has none any more.

    haproxy, proxy: pids of the HAProxy, and of Ray's proxy that has started it.
    binary, options: program and options of a stand-in.
    folder, name: of the configuration file.
    """
    config, ray = Path(folder) / name, _parent(proxy)
    _wait_for_end(haproxy, config)
    if not _alive(ray) or _answers(config):  # the cluster ends, or another HAProxy has taken over
        return
    copy = config.with_name("stand-in.cfg")
    copy.write_text(_SOCKET.sub("", config.read_text()))  # Ray is to notice, for all that
    with_this = partial(_end_with, os.getpid())
    process = subprocess.Popen([binary, *options, "-f", copy], preexec_fn=with_this)
    alone_s = None
    while process.poll() is None:
        time.sleep(LOOK_S)
        if _answers(config):
            process.send_signal(signal.SIGUSR1)  # it ends with its last answer
            _wait_for_end(process.pid, None)
            return
        if alone_s is None and not _alive(proxy):
            alone_s = time.monotonic() + ALONE_S
        if not _alive(ray) or (alone_s is not None and time.monotonic() > alone_s):
            process.kill()


def _answers(config: Path) -> bool:
    """Return whether a HAProxy answers at the socket that Ray commands it by."""
    with suppress(OSError):
        return bool(_pid_at(config))
    return False


def _pid_at(config: Path) -> int:
    """Return the pid of the HAProxy that answers at the socket that Ray commands it by; 0 if it does not say. Raises
    OSError, TimeoutError if it does not answer."""
    found = _SOCKET.search(config.read_text())
    if found is None:
        return 0
    with socket.socket(socket.AF_UNIX) as admin:
        admin.settimeout(ANSWER_S)
        admin.connect(found[1])
        admin.sendall(b"show info\n")
        said = _PID.search(admin.recv(2**16))
    return int(said[1]) if said else 0


def _wait_for_end(pid: int, config: Path | None) -> None:
    """Return when a process has ended. config: of a HAProxy, which is killed if it has answered, and does no more."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    answered, silent = False, 0
    while not select.select([process], [], [], None if config is None else LOOK_S)[0]:
        try:
            assert config is not None
            answered, silent = _pid_at(config) == pid, 0
        except TimeoutError:
            silent += answered
        except OSError:  # another one is about to take over
            silent = 0
        if silent == SILENT:
            os.kill(pid, signal.SIGKILL)
    os.close(process)


def _parent(pid: int) -> int:
    """Return the parent of a process; 0 if it is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _alive(pid: int) -> bool:
    return bool(pid) and Path(f"/proc/{pid}").exists()


def _end_with(parent: int) -> None:
    """Have this process end with its parent; at once if that has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    watch(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
