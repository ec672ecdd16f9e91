"""The head's store (Ray's GCS) dies under load and comes back, with its state in a real Redis: no answer notices."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tandem.app.cli.server.local_ray import free_port
from tandem.benchmarks.application import application
from tandem.benchmarks.robustness.load import REPLICA, asking, processes, under_load
from tests.applications import until

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]

AWAY_S = 5.0
"""Seconds for which there is no GCS."""


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Run a Redis server; yields its address."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed (Debian's package redis-server has it)")
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def words(pid: int, file: str) -> list[str]:
    """Return what a process was started with."""
    return [os.fsdecode(word) for word in Path(f"/proc/{pid}/{file}").read_bytes().split(b"\0") if word]


def ours(program: str, namespace: str) -> int:
    """Return the pid of a program of the Ray with that namespace in Redis: another may run beside it."""
    (found,) = (p for p in processes(program) if namespace in " ".join(words(p.pid, "environ")))
    return found.pid


class Gcs:
    """Ray's GCS of an application, which is started again at the address that the others know."""

    def __init__(self, namespace: str) -> None:
        self.pid, self.raylet = ours("gcs_server", namespace), ours("raylet", namespace)
        (address,) = (word for word in words(self.raylet, "cmdline") if word.startswith("--gcs-address="))
        port = address.rpartition(":")[2]
        self._command = [
            f"--gcs_server_port={port}" if word.startswith("--gcs_server_port=") else word
            for word in words(self.pid, "cmdline")
        ]
        pairs = (pair.partition("=") for pair in words(self.pid, "environ"))
        self._environment = {name: value for name, _, value in pairs}

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def restart(self) -> subprocess.Popen[bytes]:
        """Start it as it was started, as a head that Kubernetes starts again does."""
        return subprocess.Popen(
            self._command, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


async def test_answers_go_on_without_the_heads_store_and_parts_come_back_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis(tmp_path) as address:
        monkeypatch.setenv("RAY_REDIS_ADDRESS", address)
        namespace = uuid4().hex
        monkeypatch.setenv("RAY_external_storage_namespace", namespace)
        folder = tmp_path / "application"
        folder.mkdir()
        settings = {
            "verifier": {"replicas": 2, "engine": {"kind": "torch", "model": "target"}},
            "hosts": [{"name": "edge", "devices": [{"name": n} for n in ("laptop", "notebook", "tablet")]}],
        }
        with application(settings, folder) as where:
            gcs = Gcs(namespace)
            new: subprocess.Popen[bytes] | None = None
            try:
                async with asking(where) as (http, right):

                    async def lose_it() -> None:
                        nonlocal new
                        gcs.kill()
                        await asyncio.sleep(AWAY_S)
                        new = gcs.restart()
                        await asyncio.sleep(AWAY_S)

                    outcome = await under_load(http, 8, right, lose_it)
                    assert (outcome.failures, outcome.breaks) == ([], [])
                    assert outcome.gaps_s

                    # The new one knows the actors: what dies from now on is replaced.
                    title = REPLICA.format("Verifier")
                    before = await asyncio.to_thread(processes, title, gcs.raylet)
                    os.kill(before[0].pid, signal.SIGKILL)

                    async def replaced() -> bool:
                        now = await asyncio.to_thread(processes, title, gcs.raylet)
                        return len(now) == 2 and before[0] not in now

                    await until(replaced, 120.0)
            finally:
                if new is not None:
                    with suppress(ProcessLookupError):
                        new.kill()
                    new.wait()
