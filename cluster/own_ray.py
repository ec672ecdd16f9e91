"""End of a Ray that this process has started."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

REAP_S = 10.0
"""Seconds in which each of its processes must end."""


@contextmanager
def reaped() -> Iterator[None]:
    """Wait on exit for Ray's processes to end; enter before Ray is shut down, leave after.

    Ray itself waits at most a second for each, and on a busy machine leaves slower ones behind.
    """
    from ray._private.worker import _global_node

    started: list[Any] = [] if _global_node is None else list(_global_node.all_processes.values())
    yield
    for info in (info for kind in started for info in kind):
        with suppress(subprocess.TimeoutExpired):
            info.process.wait(REAP_S)
