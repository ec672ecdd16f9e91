"""Programs in processes of their own, `tandem up` among them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def interruptible() -> Iterator[None]:
    """Let processes that start here heed Ctrl-C, as those of a terminal do. Whom a shell starts in the background
    ignores it, and so would its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def started(folder: Path, config: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`tandem up` in a session of its own, once it says how to use it."""
    command = [Path(sys.executable).with_name("tandem"), "up", "--config", config, *options]
    with (
        interruptible(),
        subprocess.Popen(
            command,
            cwd=folder,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            said: list[str] = []
            for line in process.stdout:
                said.append(line)
                if "Ctrl-C" in line:
                    break
            else:
                raise AssertionError("".join(said))
            yield process
        finally:
            process.kill()
