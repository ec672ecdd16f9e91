"""Runs programs that a model wrote: apart, with little memory and time, without files, processes or network.

A guard against accidents, not against attackers: it is Python that is held, by its audit events, and not the kernel.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

PASSED = 87
"""Exit status of a program that came to its end; one that exits by itself has another."""
LIMIT_S = 60.0  # of a program that waits; one that computes ends by CPU_S before, also on a busy machine
CPU_S = 5
MEMORY_BYTES = 1 << 30
_RUNNER = f"""
import os, resource, sys
for kind, most in (("CPU", {CPU_S}), ("AS", {MEMORY_BYTES}), ("FSIZE", 0), ("NPROC", 0), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + kind), (most, most))
program = compile(sys.stdin.read(), "solution", "exec")
refused = ("os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "subprocess.", "socket.",
    "ctypes.", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink",
    "os.truncate", "os.chmod", "os.chown", "shutil.", "signal.", "pty.")
writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
def audit(event, arguments):
    if event.startswith(refused) or event == "open" and (arguments[2] or 0) & writing:
        raise PermissionError(event)
sys.addaudithook(audit)
exec(program, {{"__name__": "solution"}})
os._exit({PASSED})
"""


def passes(program: str, limit_s: float = LIMIT_S) -> bool:
    """Return whether a Python program comes to its end without an error, within so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _RUNNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            process.communicate(program.encode(errors="replace"), timeout=limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started
            process.wait()
        return process.returncode == PASSED
