"""The Serve application as `tandem up` starts it, for benchmarks that go through the front door.

It runs the code of the tree that the benchmark lies in, wherever Tandem is installed from.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from app.cli.local_ray import free_port
from app.cli.up import CONFIG
from benchmarks.paths import ROOT

READY_WITHIN_S = 120.0


@contextmanager
def application(settings: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """The application with these settings (`app.settings.Settings`) until the context is left; host and port.

    Raises RuntimeError if it does not come up.
    """
    config = yaml.safe_load(CONFIG.read_text())
    config["applications"][0]["args"] = settings
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "application.yaml"
        path.write_text(yaml.safe_dump(config))
        tandem = [sys.executable, "-c", "from app.cli.main import main; main()"]
        process = subprocess.Popen(
            [*tandem, "up", "--port", str(port), "--config", str(path)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=sys.stderr,
        )
        try:
            _wait_until_ready(f"http://127.0.0.1:{port}/readyz", process)
            yield "127.0.0.1", port
        finally:
            process.terminate()  # SIGINT may be ignored where this runs in the background
            process.wait(60)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(url, timeout=2.0).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError("the application did not come up")
