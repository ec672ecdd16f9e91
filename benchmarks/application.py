"""The Serve application as `tandem up` starts it, for benchmarks that go through the front door.

It runs the code of the tree that the benchmark lies in, whatever other Tandem is installed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import yaml

from tandem.app.cli.server.local_ray import free_port
from tandem.app.cli.server.up import CONFIG
from tandem.benchmarks.paths import ROOT

READY_WITHIN_S = 300.0  # real models take a minute to load, more on a busy machine


TANDEM = [sys.executable, "-c", "from tandem.app.cli.main import main; main()"]


def configured(settings: dict[str, Any]) -> dict[str, Any]:
    """The checked-in Serve YAML with these settings (`app.settings.Settings`), and one replica of the API unless they
    say otherwise: others would take part of what is measured."""
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    config["applications"][0]["args"] = {"ingress_replicas": 1} | settings
    return config


@contextmanager
def application(
    settings: dict[str, Any], folder: Path | None = None, tree: Path = ROOT
) -> Iterator[tuple[str, int]]:
    """The application with these settings until the context is left; host and port.

    folder: in which it is started; tree: whose code it runs. Raises RuntimeError if it does not come up.
    """
    port = free_port()
    with nullcontext(folder) if folder else tempfile.TemporaryDirectory() as where:
        path = _written(configured(settings), Path(where))
        process = subprocess.Popen(
            [*TANDEM, "up", "--port", str(port), "--config", str(path)],
            cwd=where,
            env=os.environ | {"PYTHONPATH": str(tree)},
            stdout=sys.stderr,
        )
        try:
            _wait_until_ready(f"http://127.0.0.1:{port}/readyz", process)
            yield "127.0.0.1", port
        finally:
            process.terminate()  # SIGINT may be ignored where this runs in the background
            process.wait(60)


def healthy(url: str) -> bool:
    """Return whether another project's server at `url` says that it is up."""
    try:
        return httpx.get(f"{url}/health", timeout=2.0).status_code == 200
    except httpx.TransportError:
        return False


async def change(config: dict[str, Any], folder: Path) -> None:
    """Deploy this Serve YAML in place of the running one. Raises RuntimeError if that fails."""
    path = _written(config, folder)
    process = await asyncio.create_subprocess_exec(
        *TANDEM,
        "deploy",
        "--config",
        str(path),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=sys.stderr,
    )
    if await process.wait():
        raise RuntimeError("the change failed")


def _written(config: dict[str, Any], folder: Path) -> Path:
    path = folder / "application.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            reply = httpx.get(url, timeout=2.0)
            if reply.status_code == 200 and not reply.json().get("missing"):
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError("the application did not come up")
