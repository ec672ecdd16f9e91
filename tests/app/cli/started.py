"""`tandem up` in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path


@contextmanager
def started(folder: Path, config: Path) -> Iterator[subprocess.Popen[str]]:
    """`tandem up` in a session of its own, once it says how to use it."""
    command = [Path(sys.executable).with_name("tandem"), "up", "--config", config]
    # Whom a shell starts in the background ignores Ctrl-C, and so would the children. Those of a terminal do not.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command,
        cwd=folder,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = list(takewhile(lambda line: "Ctrl-C" not in line, process.stdout))
            assert process.poll() is None, "".join(said)
            yield process
        finally:
            process.kill()
            signal.signal(signal.SIGINT, before)
