"""The folder of a Ray of one's own: what other users of the machine can do to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from stat import S_IMODE

import pytest

from tandem.app.cli.server import local_ray
from tandem.app.cli.server.local_ray import free_port

STARTER = """
import ray, sys
from ray._common.utils import try_to_create_directory
from tandem.app.cli.server.local_ray import local_ray

def init(_temp_dir, **_):
    try_to_create_directory(_temp_dir)  # as Ray does before it starts anything
    print(_temp_dir, flush=True)

ray.init = init
with local_ray() as started:
    print(started.folder, flush=True)
    sys.stdin.read()
"""
SETTER = """
import os, ray
from tandem.app.cli.server.local_ray import ENVIRONMENT, local_ray

ray.init = lambda **_: None
before = {**os.environ, **ENVIRONMENT}
with local_ray():
    print(*(name for name in os.environ if name not in before))
print(*(os.environ.keys() ^ before.keys()))
"""
FAILER = """
import ray, subprocess, sys
from tandem.app.cli.server.local_ray import TRIES, StartFailed, local_ray
from tandem.app.cli.server.processes import descendants

failures, left, kept = int(sys.argv[1]), [], []

def init(**_):
    left.append([process.pid for process in descendants()])
    if len(left) <= failures:
        subprocess.Popen(["sleep", "600"])  # as Ray leaves its processes
        raise Exception("The current node timed out during startup.")

ray.init = init
try:
    with local_ray(tell=lambda text: print("told:", text), failed=lambda folder: kept.append(folder.exists())):
        print("started")
except StartFailed as error:
    print("failed:", error)
print(len(left), TRIES, kept, len({len(pids) for pids in left}))
"""
PATIENT = """
from tandem.app.cli.server import local_ray
from ray._private import services

asked = []
def get_node(gcs_address, node_id):
    asked.append(node_id)
    if len(asked) < 3:
        raise RuntimeError("not yet")
    return {"labels": {}}

services.get_node = get_node
local_ray._runs = lambda program: True
with local_ray._for_serve():
    assert services.get_node("here", "node") == {"labels": {}}
assert services.get_node is get_node
asked.clear()
local_ray._runs = lambda program: False  # the raylet has ended: there is nothing to wait for
with local_ray._for_serve():
    try:
        services.get_node("here", "node")
    except RuntimeError:
        print(len(asked))
"""
SET = {"RAY_AUTH_TOKEN_PATH", "RAY_SERVE_HAPROXY_BINARY_PATH"}
OTHER = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_can_neither_read_nor_replace_what_is_in_it() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", STARTER]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=_without_ray()) as process:
        assert process.stdout is not None
        rays, folder = (Path(process.stdout.readline().strip()) for _ in range(2))
        assert S_IMODE(rays.stat().st_mode) == 0o777, "Ray lets everybody write to its own"
        token, haproxy = folder / "token", folder / "h"
        assert token.exists()
        assert haproxy.exists()
        for attempt in (
            ["ls", folder],
            ["cat", token],
            ["mv", token, folder / "moved"],
            ["mv", haproxy, folder / "moved"],
            ["touch", rays / "planted"],
        ):
            done = subprocess.run([*OTHER, *attempt], capture_output=True, text=True)
            assert done.returncode != 0, attempt
            assert "Permission denied" in done.stderr
        process.communicate()
    assert process.returncode == 0
    assert not folder.exists()


def test_no_variable_names_a_file_that_is_gone() -> None:
    command = [sys.executable, "-c", SETTER]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=_without_ray()).stdout
    during, after = printed.split("\n")[:2]
    assert set(during.split()) >= SET
    assert after == ""


@pytest.mark.parametrize("failures", [2, 3])
def test_a_start_that_fails_is_tried_again_twice(failures: int) -> None:
    """Stops its processes first. The message says why it failed, and how busy the machine is."""
    command = [sys.executable, "-c", FAILER, str(failures)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=_without_ray())
    *said, last = done.stdout.splitlines()
    assert last == f"3 3 {[] if failures == 2 else [True]} 1", done.stdout
    assert (
        len([line for line in said if line.startswith("told: Ray did not start (The current node timed")])
        == 2
    )
    assert all("programs want the" in line for line in said if line.startswith(("told:", "failed:")))
    assert said[-1] == "started" if failures == 2 else said[-1].startswith("failed:")


def test_a_node_has_time_to_register_while_its_raylet_runs() -> None:
    done = subprocess.run([sys.executable, "-c", PATIENT], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_ports_that_are_not_bound_yet_are_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither here nor by a program that this one starts."""
    mine = {free_port() for _ in range(20)}
    assert len(mine) == 20
    monkeypatch.setattr(os, "getpid", partial(int, os.getpid() + 1))
    assert mine.isdisjoint(free_port() for _ in range(20))


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(local_ray, "PORTS", range(port, port + 1))
        monkeypatch.setattr(local_ray, "_SLICE", 1)
        with pytest.raises(OSError, match="is free"):
            free_port()


def _without_ray() -> dict[str, str]:
    """Return this process's variables without those that a Ray shared by other tests may have set here."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "TANDEM_"))}
