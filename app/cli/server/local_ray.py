"""A Ray cluster of one's own on this machine: loopback only, in a folder of its own, gone when it is left."""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tandem.app.cli.server.guard import guarded
from tandem.app.cli.server.processes import adopt_orphans, collect, descendants, end
from tandem.app.cli.server.proxy import haproxy
from tandem.cluster.own_ray import reaped

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's name for: stay on the loopback interface
    "RAY_worker_niceness": "0",  # Ray's 15 starves replicas, proxies and controller beside any other busy program
    "RAY_SERVE_LOG_TO_STDERR": "0",
    # One event loop a replica: with one more thread for user code, every token would change threads.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_FREEZE_GC_ON_STARTUP": "1",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",  # a call of a handle costs less than one of an actor
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**28),  # of bytes: a snapshot may name many devices
    # On a busy machine HAProxy takes longer to start than the 5 s after which Serve starts it anew, and three times is
    # for good; a new controller asks one that runs, and answers, in the same way.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "180",  # its dozen processes took more than Ray's 60 s there, once
}
"""Ray and Serve read these when they are imported: set them before."""


TOKEN = "token"
"""The file with the secret that Ray's processes and its clients present to each other."""
RAYS = "ray"
"""The folder that Ray writes to. Ray lets every user write there, so it lies inside a folder that only this user may
enter, and what others must not replace lies beside it. Short, like all of the path: Ray makes sockets below it."""


class StillRunning(RuntimeError):
    """Processes that could not be stopped."""


@dataclass(frozen=True, slots=True)
class LocalRay:
    """A running Ray.

    dashboard: its address, which `serve deploy` talks to.
    folder: all of its files, for this user alone.
    """

    dashboard: str
    folder: Path


@contextmanager
def local_ray(bind: str = "", pem: bytes = b"") -> Iterator[LocalRay]:
    """Start Ray, and stop it at the end. bind, pem: of HAProxy, see `haproxy.environment`.

    Its processes are stopped one by one where Ray leaves some, and none outlives this one, even if it is killed. Raises
    StillRunning if a process cannot be stopped.
    """
    os.environ.update(ENVIRONMENT)
    folder = Path(tempfile.mkdtemp(prefix="tandem-"))  # mode 0700
    token = folder / TOKEN
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    adopt_orphans()
    with (
        guarded(folder),
        _variables(token_of(folder) | haproxy.environment(folder, free_port, bind, pem)),
    ):
        import ray

        before = set(descendants())
        try:
            port = free_port()
            ray.init(
                address="local",
                namespace="serve",
                num_cpus=max(4, os.cpu_count() or 1),  # replicas ask for fractions of one; see the settings
                object_store_memory=100_000_000,
                include_dashboard=True,
                dashboard_host="127.0.0.1",
                dashboard_port=port,
                _temp_dir=str(folder / RAYS),
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            yield LocalRay(f"http://127.0.0.1:{port}", folder)
        finally:
            started = set(descendants()) - before
            with reaped():
                ray.shutdown()
                stubborn = end(started)
            collect(started)
            if stubborn:
                raise StillRunning(f"these processes live on: {', '.join(str(p.pid) for p in stubborn)}")


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and have them as before at the end: the files that they name are gone then."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def token_of(folder: Path) -> dict[str, str]:
    """Environment variables that tell Ray where the token of the cluster with this folder is."""
    return {"RAY_AUTH_TOKEN_PATH": str(folder / TOKEN)}


def logs_of(folder: Path) -> Path:
    """Ray's logs, of the cluster with this folder."""
    return folder / RAYS / "session_latest" / "logs"


PORTS = range(20_000, 30_000)
_SLICE = 50
_given: deque[int] = deque(maxlen=_SLICE // 2)
"""Ports that this process gave last, which may not be bound yet."""


def free_port() -> int:
    """Return a free TCP port of the loopback interface, outside the range that the system assigns. Raises OSError if
    none is free.

    Ports from 32768 on would do until one of Ray's own servers is given the same one a moment later. Each process takes
    them from a slice of its own: what one has been given, and not bound yet, is not given to the next.
    """
    first = os.getpid() * _SLICE % len(PORTS)
    own = PORTS[first : first + _SLICE]
    for port in (*random.sample(own, _SLICE), *random.sample(PORTS, len(PORTS))):
        with socket.socket() as probe, suppress(OSError):
            if port not in _given:
                probe.bind(("127.0.0.1", port))
                _given.append(port)
                return port
    raise OSError(f"no port from {PORTS[0]} to {PORTS[-1]} is free")
