"""A stand-in for a HAProxy that dies.

Ray Serve takes half a minute to notice that its HAProxy is gone, and to start another one. Until then a second one with
the same configuration answers clients: this program waits beside each HAProxy, starts the second one if nobody has
taken over when the first is gone, and ends it when Ray's new one is there and has heard of the application. It needs
nothing but Python. It kills no HAProxy that only takes long to answer: on a busy machine a healthy one does.
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
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path

COPY = "stand-in.cfg"
"""Name of a stand-in's configuration."""
LOOK_S = 0.2
"""Seconds between two looks at whether a new HAProxy is there."""
ALONE_S = 600.0
"""Seconds after the end of Ray's proxy within which its successor starts, or none will; it has taken 48."""
TOLD_S = 600.0
"""Seconds after its start within which Ray's new HAProxy knows the application, or never will: there is another one."""
ANSWER_S = 5.0
"""Longest wait for a HAProxy to say that it is there; it takes less than a millisecond where it gets the processor."""
_PR_SET_PDEATHSIG = 1
_ROUTE = re.compile(r"^ *use_backend (\S+) if is_", re.MULTILINE)
_NEXT = re.compile(r"unix@\S+ accept-proxy")
_SOCKET = re.compile(r"^ *stats socket (\S+).*\n", re.MULTILINE)


def watch(haproxy: int, proxy: int, binary: str, config: Path, admin: str, *options: str) -> None:
    """Return when a HAProxy needs no stand-in, or has none any more. A stand-in that dies gets a successor.

    haproxy, proxy: pids of the HAProxy, and of Ray's proxy that has started it.
    binary, options: program and options of a stand-in.
    config: the configuration file.
    admin: socket that a stand-in is commanded by.
    """
    ray = _parent(proxy)
    _wait_for_end(haproxy)
    copy, text = config.with_name(COPY), config.read_text()
    need = _Need(config, _routes(text), proxy, ray)
    with_this = partial(_end_with, os.getpid())
    spare = f"    stats socket {admin} mode 600\n"  # so that Ray notices, for all that
    # Where a HAProxy that knows no application yet hands requests.
    text = _NEXT.sub(f"unix@{admin}-in accept-proxy", text)
    while not need.is_over():  # the cluster ends, or another HAProxy has taken over
        copy.write_text(_SOCKET.sub(lambda _: spare, text))
        process = subprocess.Popen([binary, *options, "-f", copy], preexec_fn=with_this)
        _wait_for_end(process.pid, enough=need.is_over)
        if process.poll() is None:  # with its last answer, where there will be more from another one
            process.send_signal(signal.SIGUSR1 if need.taken_over else signal.SIGKILL)
        if process.wait() > 0:  # it could not start, nor could the next
            return


class _Need:
    """Need of a stand-in.

    served: backends that a stand-in has. Ray starts a HAProxy without any, and tells it later.
    taken_over: whether another HAProxy answers for Ray, and has them.
    """

    def __init__(self, config: Path, served: set[str], proxy: int, ray: int) -> None:
        self._config, self._served, self._proxy, self._ray = config, served, proxy, ray
        self._alone_s = self._told_s = inf
        self.taken_over = False

    def is_over(self) -> bool:
        """Return whether it is over."""
        now_s, there = time.monotonic(), _has(self._config, set())
        self._told_s = min(self._told_s, now_s + TOLD_S) if there else inf
        self._alone_s = inf if there or _alive(self._proxy) else min(self._alone_s, now_s + ALONE_S)
        self.taken_over = self.taken_over or now_s > self._told_s or _has(self._config, self._served)
        return self.taken_over or not _alive(self._ray) or now_s > self._alone_s


def _routes(config: str) -> set[str]:
    """Return the backends of applications in a configuration."""
    return set(_ROUTE.findall(config))


def _has(config: Path, served: set[str]) -> bool:
    """Return whether a HAProxy with these backends answers at the socket that Ray commands it by."""
    with suppress(OSError):
        return served <= set(_asked(config, "show backend").split())
    return False


def _asked(config: Path, command: str) -> str:
    """Return what a HAProxy says to a command at the socket of a configuration. Raises OSError if it does not answer,
    or the configuration has none."""
    found = _SOCKET.search(config.read_text())
    if found is None:
        raise OSError(f"{config} has no socket")
    with socket.socket(socket.AF_UNIX) as admin:
        admin.settimeout(ANSWER_S)
        admin.connect(found[1])
        admin.sendall(f"{command}\n".encode())
        return b"".join(iter(lambda: admin.recv(2**16), b"")).decode()


def _never() -> bool:
    return False


def _wait_for_end(pid: int, enough: Callable[[], bool] = _never) -> None:
    """Return when a process has ended, or there is enough."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    while not select.select([process], [], [], LOOK_S)[0] and not enough():
        pass
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
    watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), *sys.argv[5:])
