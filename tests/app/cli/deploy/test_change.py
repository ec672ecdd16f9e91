"""`tandem deploy` of what works, of what fails, and of what is refused beforehand, beside a load."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tandem.app.cli.server.local_ray import free_port
from tests.app.cli.server.test_up import least
from tests.app.cli.started import started

pytestmark = [
    pytest.mark.slow,  # a Ray of its own, with many replicas
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("ray"),
]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT", "1")  # without it, Serve tries three times
    config = least(tmp_path)
    content = yaml.safe_load(config.read_text())
    content["applications"][0]["args"]["gateway"] = {"port": free_port()}
    config.write_text(yaml.safe_dump(content))
    return config


def deploy(config: Path, content: dict[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
    """`tandem deploy` of this content, in the folder of the one that runs."""
    wanted = config.with_name("wanted.yaml")
    wanted.write_text(yaml.safe_dump(content))
    command = [Path(sys.executable).with_name("tandem"), "deploy", "--config", wanted, *options]
    return subprocess.run(
        command, cwd=config.parent, capture_output=True, text=True, timeout=500, check=False
    )


@contextmanager
def asking(address: str) -> Iterator[list[str]]:
    """One question after the other, three at a time; gives what the answers ended with.

    Each waits in between: without pauses they leave a small machine little time for the deploys.
    """
    ends: list[str] = []
    over = threading.Event()

    def ask() -> None:
        body = {
            "model": "tandem",
            "messages": [{"role": "user", "content": "?"}],
            "max_tokens": 8,
            "temperature": 0,
            "stream": True,
        }
        with httpx.Client(timeout=60, trust_env=False) as client:
            while not over.wait(0.2):
                try:
                    reply = client.post(f"{address}/v1/chat/completions", json=body)
                    ends.append(reply.text.strip().splitlines()[-1])
                except httpx.HTTPError as error:
                    ends.append(repr(error))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield ends
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextmanager
def knocking(port: int) -> Iterator[list[str]]:
    """One connection to the gateway after the other; gives why any was refused."""
    refused: list[str] = []
    over = threading.Event()

    def knock() -> None:
        while not over.wait(0.05):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=10).close()
            except OSError as error:
                refused.append(repr(error))

    thread = threading.Thread(target=knock)
    thread.start()
    try:
        yield refused
    finally:
        over.set()
        thread.join()


def test_what_fails_leaves_what_ran(config: Path) -> None:
    running = yaml.safe_load(config.read_text())
    args = running["applications"][0]["args"]
    address, gateway = f"http://127.0.0.1:{running['http_options']['port']}", args["gateway"]["port"]
    broken = config.with_name("broken.sqlite")
    broken.write_text("no database")
    wanted = yaml.safe_load(config.read_text())
    with started(config.parent, config), asking(address) as ends, knocking(gateway) as refused:
        wanted["applications"][0]["args"] |= {"ledger": {"path": str(broken)}, "default_reader_rate": 9.0}
        failed = deploy(config, wanted)
        assert failed.returncode == 1, failed.stdout
        assert str(broken) in failed.stderr
        assert failed.stderr.splitlines()[-1] == "Nothing has changed: what ran before runs on"
        assert httpx.get(f"{address}/readyz", trust_env=False).status_code == 200

        same = deploy(config, running, "--dry-run")
        assert same.stdout == "Nothing changes\n"

        with socket.create_server(("127.0.0.1", 0)) as other:
            wanted["applications"][0]["args"] = args | {"gateway": {"port": other.getsockname()[1]}}
            taken = deploy(config, wanted)
        assert taken.returncode == 1
        assert "gateway.port" in taken.stderr

        wanted["applications"][0]["args"] = args | {"default_reader_rate": 9.0}
        told = deploy(config, wanted, "--dry-run")
        assert "    args.default_reader_rate: not said → 9.0" in told.stdout.splitlines()
        done = deploy(config, wanted)
        assert done.returncode == 0, done.stderr
        assert httpx.get(f"{address}/readyz", trust_env=False).json()["gateway"].endswith(f":{gateway}")
    assert refused == [], "a gateway listens until its successor does"
    assert len(ends) > 10
    assert set(ends) == {"data: [DONE]"}
