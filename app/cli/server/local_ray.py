"""A Ray cluster of one's own on this machine: loopback only, in a folder of its own, gone when it is left."""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "600",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",  # of one that starves; one that has ended is noticed all the same
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "600",  # its processes took more than Ray's 60 s there, once
    # Ray's own limits, of 5 to 120 s, end the start of a healthy node where other programs keep the cores busy.
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_raylet_start_wait_time_s": "5",  # for one question whether the node is there; `_for_serve` asks again
    "RAY_gcs_server_port_wait_time_s": "600",
    "RAY_gcs_rpc_server_connect_timeout_s": "120",
    "RAY_py_gcs_connect_timeout_s": "120",
    "RAY_raylet_client_num_connect_attempts": "120",  # of a second each
    "RAY_health_check_timeout_ms": "60000",  # of a node that starves; one that has ended refuses at once
}
"""Ray and Serve read these when they are imported: set them before."""


TOKEN = "token"
"""The file with the secret that Ray's processes and its clients present to each other."""
RAYS = "ray"
"""The folder that Ray writes to. Ray lets every user write there, so it lies inside a folder that only this user may
enter, and what others must not replace lies beside it. Short, like all of the path: Ray makes sockets below it."""


REGISTERED_WITHIN_S = 600.0
"""Seconds within which a node whose raylet runs must have registered; Ray itself gives it 30."""
TRIES = 3
"""Times that a start is tried."""


class StartFailed(RuntimeError):
    """Ray did not start."""


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
def local_ray(
    bind: str = "",
    pem: bytes = b"",
    tell: Callable[[str], object] = lambda _: None,
    failed: Callable[[Path], object] = lambda _: None,
) -> Iterator[LocalRay]:
    """Start Ray, and stop it at the end.

    bind, pem: of HAProxy, see `haproxy.environment`.
    tell: hears why a start is tried again.
    failed: called with Ray's folder, which goes afterwards, if no start succeeds.

    Its processes are stopped one by one where Ray leaves some, and none outlives this one, even if it is killed. Raises
    StartFailed, or StillRunning if a process cannot be stopped.
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
            yield LocalRay(f"http://127.0.0.1:{_started(folder, tell, failed)}", folder)
        finally:
            started = set(descendants()) - before
            with reaped():
                ray.shutdown()
                stubborn = end(started)
            collect(started)
            if stubborn:
                raise StillRunning(f"these processes live on: {', '.join(str(p.pid) for p in stubborn)}")


def _started(folder: Path, tell: Callable[[str], object], failed: Callable[[Path], object]) -> int:
    """Start Ray, and return the port of its dashboard. What a failed start leaves is stopped before the next one.

    Raises StartFailed.
    """
    import ray

    before = set(descendants())
    for attempt in range(1, TRIES + 1):
        port = free_port()
        try:
            with _for_serve():
                ray.init(
                    address="local",
                    namespace="serve",
                    num_cpus=max(4, os.cpu_count() or 1),  # replicas ask for fractions of one
                    object_store_memory=100_000_000,
                    include_dashboard=True,
                    dashboard_host="127.0.0.1",
                    dashboard_port=port,
                    _temp_dir=str(folder / RAYS),
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            return port
        except Exception as error:  # Ray raises whatever it met, some of it as plain Exceptions
            why = f"Ray did not start ({' '.join(str(error).split()) or type(error).__name__}); {busy()}"
            if attempt == TRIES:
                failed(folder)
                raise StartFailed(why) from None
            tell(f"{why}. Trying again")
            ray.shutdown()
            began = set(descendants()) - before
            end(began)
            collect(began)
    raise AssertionError


def busy() -> str:
    """Return how busy this machine is, in words."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    said = f"{load:.0f} programs want the {cores} cores of this machine"
    return f"{said}: it may start once fewer do" if load > 2 * cores else said


LISTENS = "dashboard_agent_listen_port"
AGENTS_PORTS = ("metrics_agent_port", "metrics_export_port", LISTENS, "runtime_env_agent_port")
"""Ports of a raylet's agents. If the agents choose them, the raylet ends itself unless they have within 15 s."""
MODULES = "ServeHead"
"""Part of Ray's dashboard that `serve deploy` and `serve status` talk to. The other parts are nine processes more."""


@contextmanager
def _for_serve() -> Iterator[None]:
    """Have Ray start no more of its dashboard than MODULES, and wait for its node while the raylet runs, and for that
    one's agents: Ray's 30 and 15 s are too few on a busy machine. No setting of Ray's does that."""
    from ray._private import ray_constants, services

    ask, start, start_raylet = services.get_node, services.start_ray_process, services.start_raylet
    ports = {name: free_port() for name in AGENTS_PORTS}

    def raylet_of(*args: Any, **options: Any) -> object:
        return start_raylet(*args, **options | ports)

    def start_of(command: list[str], process_type: str, *args: Any, **options: Any) -> object:
        if process_type == ray_constants.PROCESS_TYPE_DASHBOARD:
            command = [*command, f"--modules-to-load={MODULES}"]
        elif process_type == ray_constants.PROCESS_TYPE_RAYLET:  # Ray itself tells the agent alone
            command = [*command, f"--{LISTENS}={ports[LISTENS]}"]
        return start(command, process_type, *args, **options)

    def wait(gcs_address: str, node_id: str) -> object:
        deadline = time.monotonic() + REGISTERED_WITHIN_S
        while True:
            try:
                return ask(gcs_address, node_id)
            except RuntimeError:
                if time.monotonic() > deadline or not _runs(RAYLET):
                    raise
            time.sleep(0.5)

    services.get_node, services.start_ray_process, services.start_raylet = wait, start_of, raylet_of
    try:
        yield
    finally:
        services.get_node, services.start_ray_process, services.start_raylet = ask, start, start_raylet


RAYLET = "raylet"
"""Name of Ray's process of a node."""


def _runs(program: str) -> bool:
    """Return whether a descendant of this process with that name runs."""
    for process in descendants():
        with suppress(OSError):  # it has ended since
            if Path(f"/proc/{process.pid}/comm").read_text().strip() == program:
                return True
    return False


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
