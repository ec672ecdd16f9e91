"""What HAProxy is told before it starts."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from stat import S_IMODE

import httpx
import pytest

from app.cli.haproxy import environment
from app.cli.local_ray import free_port

RAYS = """global
    nbthread 1
defaults
    mode http
frontend prometheus
    bind :{metrics}
frontend http_frontend
    bind *:8000
listen stats
  bind *:{stats}
"""


RETRYING = """defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
    option redispatch 1
    retry-on {retry_on}
listen one
    bind 127.0.0.1:{port}
"""


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    ports = iter(range(21_000, 21_100))
    return environment(tmp_path, lambda: next(ports))


def test_counters_are_for_this_machine_and_the_api_hears_who_asks(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    metrics, stats = (variables[f"RAY_SERVE_HAPROXY_{name}_PORT"] for name in ("METRICS", "STATS"))
    config = tmp_path / "haproxy.cfg"
    config.write_text(RAYS.format(metrics=metrics, stats=stats))
    for _ in range(2):  # what has been put right stays as it is
        check = [variables["RAY_SERVE_HAPROXY_BINARY_PATH"], "-c", "-f", str(config)]
        done = subprocess.run(check, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        lines = [line.strip() for line in config.read_text().splitlines()]
        assert [line for line in lines if line.startswith("bind")] == [
            f"bind 127.0.0.1:{metrics}",
            "bind *:8000",  # which the operator has chosen
            f"bind 127.0.0.1:{stats}",
        ]
        assert lines.count("option forwardfor") == lines.count("option http-buffer-request") == 1


def test_a_replica_that_goes_with_nothing_said_loses_no_request(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    seen: list[str] = []

    class Going(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # read, and not answered
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append("going")

    class Staying(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append("staying")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    port = free_port()
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), kind)) for kind in (Going, Staying)
        ]
        for server in servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
        backends = "".join(
            f"    server s{n} 127.0.0.1:{server.server_port}\n" for n, server in enumerate(servers)
        )
        config = tmp_path / "haproxy.cfg"
        config.write_text(
            RETRYING.format(retry_on=variables["RAY_SERVE_HAPROXY_RETRY_ON"], port=port) + backends
        )
        start = [variables["RAY_SERVE_HAPROXY_BINARY_PATH"], "-db", "-f", str(config)]
        stack.callback((process := subprocess.Popen(start)).wait)
        stack.callback(process.terminate)
        until(lambda: name(process.pid) == "haproxy" and listens(port))
        for _ in range(4):
            assert httpx.post(f"http://127.0.0.1:{port}/", json={}).status_code == 200
    assert seen.count("going") >= 2, "its turn came, too"
    assert seen.count("staying") == 4


def test_it_ends_with_who_started_it(tmp_path: Path, variables: dict[str, str]) -> None:
    """However that ended."""
    config = tmp_path / "haproxy.cfg"
    config.write_text(f"defaults\n    mode http\nlisten one\n    bind 127.0.0.1:{free_port()}\n")
    start = [variables["RAY_SERVE_HAPROXY_BINARY_PATH"], "-db", "-f", str(config)]
    starter = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen(
        [sys.executable, "-c", starter, *start], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until(lambda: name(pid) == "haproxy")
        parent.kill()
    until(lambda: name(pid) is None)


def name(pid: int) -> str | None:
    """The program that this process runs; None once it is gone, or waits only for somebody to see that."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except FileNotFoundError:
        return None


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def until(met: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_nobody_else_may_command_it(variables: dict[str, str]) -> None:
    socket = Path(variables["RAY_SERVE_HAPROXY_SOCKET_PATH"])
    assert S_IMODE(socket.parent.stat().st_mode) == 0o700


def test_two_clusters_share_no_port(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    ports = [
        value
        for folder in folders
        for name, value in environment(folder, free_port).items()
        if name.endswith("_PORT")
    ]
    assert len(ports) == len(set(ports)) == 8
