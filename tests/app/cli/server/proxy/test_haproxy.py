"""HAProxy's configuration before it starts."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from stat import S_IMODE

import httpx
import pytest

from tandem.app.cli.server.local_ray import free_port
from tandem.app.cli.server.proxy import stand_in
from tandem.app.cli.server.proxy.haproxy import environment, show
from tests.cluster.certificate import make_certificate

RAYS = """global
    nbthread 1
    maxconn {maxconn}
    stats socket {admin} mode 600 level admin expose-fd listeners
defaults
    mode http
    timeout connect 5s
    timeout client {timeout}s
    timeout server 60s
    option splice-request
    option splice-response
    option idle-close-on-response
    retry-on {retry_on}
frontend prometheus
    bind :{metrics}
frontend http_frontend
    bind *:{port}

    # here is use_backend, as in Ray's comments
    acl is_api path_beg /
    use_backend api if is_api
    default_backend default_backend
backend default_backend
    http-request return status 404
backend api
    http-reuse always
    server one 127.0.0.1:{server}
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


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    ports = iter(range(21_000, 21_100))
    return environment(tmp_path, lambda: next(ports))


def stand_ins(folder: Path) -> list[int]:
    """Return the processes that wait beside the HAProxies of a folder."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            said = (process / "cmdline").read_bytes().decode(errors="replace")
            if process.name.isdigit() and "stand_in.py" in said and str(folder) in said:
                found.append(int(process.name))
    return found


def watchers(folder: Path) -> dict[int, int]:
    """Return those that are children of a HAProxy, which they watch, with its process."""
    found = {}
    for pid in stand_ins(folder):
        with suppress(OSError):
            if name(parent := parent_of(pid)) == "haproxy":
                found[pid] = parent
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(autouse=True)
def end_stand_ins(tmp_path: Path) -> Iterator[None]:
    yield
    for pid in stand_ins(tmp_path):
        os.kill(pid, signal.SIGKILL)


def write_rays(variables: dict[str, str], port: int, server: int) -> Path:
    """The configuration, as Ray writes it."""
    config = Path(variables["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"])
    names = {"admin": "SOCKET_PATH", "metrics": "METRICS_PORT", "stats": "STATS_PORT", "retry_on": "RETRY_ON"}
    names |= {"maxconn": "MAXCONN", "timeout": "TIMEOUT_CLIENT_S"}
    values = {name: variables[f"RAY_SERVE_HAPROXY_{its}"] for name, its in names.items()}
    config.write_text(RAYS.format(**values, port=port, server=server))
    return config


def test_counters_are_for_this_machine_and_the_api_hears_who_asks(variables: dict[str, str]) -> None:
    config = write_rays(variables, 8000, 8001)
    for _ in range(2):  # what has been put right stays as it is
        check = [variables["RAY_SERVE_HAPROXY_BINARY_PATH"], "-c", "-f", str(config)]
        done = subprocess.run(check, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        lines = [line.strip() for line in config.read_text().splitlines()]
        assert [line for line in lines if line.startswith("bind")] == [
            f"bind 127.0.0.1:{variables['RAY_SERVE_HAPROXY_METRICS_PORT']}",
            "bind *:8000",  # which the operator has chosen
            f"bind unix@{config.parent}/next accept-proxy mode 600",
            f"bind 127.0.0.1:{variables['RAY_SERVE_HAPROXY_STATS_PORT']}",
        ]
        assert lines.count("option forwardfor") == lines.count("option http-buffer-request") == 1


class Scheme(Quiet):
    """Answers with what it is told that its client speaks."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.headers.get("X-Forwarded-Proto", "").encode())


def pem_of(folder: Path) -> tuple[bytes, ssl.SSLContext]:
    """Return a new key and certificate, and a context that trusts it alone."""
    folder.mkdir()
    certificate, key = make_certificate(folder)
    return key.read_bytes() + b"\n\n" + certificate.read_bytes(), ssl.create_default_context(
        cafile=str(certificate)
    )


def test_it_speaks_tls_and_takes_a_new_certificate(tmp_path: Path) -> None:
    (pem, trusting), (later, trusting_later) = (pem_of(tmp_path / name) for name in ("one", "two"))
    port = free_port()
    variables = environment(tmp_path, free_port, f"127.0.0.1:{port}", pem)
    url = f"https://127.0.0.1:{port}/"
    with ExitStack() as stack:
        server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Scheme))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        config = write_rays(variables, free_port(), server.server_port)  # Serve itself says another port
        start = [variables["RAY_SERVE_HAPROXY_BINARY_PATH"], "-db", "-f", str(config)]
        stack.callback((process := subprocess.Popen(start)).wait)
        stack.callback(process.terminate)
        until(lambda: name(process.pid) == "haproxy" and listens(port))
        lied = {"X-Forwarded-Proto": "http"}
        assert httpx.get(url, headers=lied, verify=trusting).text == "https"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(url, verify=trusting_later)
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(url.replace("https", "http"))
        show(tmp_path, later)
        assert httpx.get(url, verify=trusting_later).text == "https"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(url, verify=trusting)
        assert S_IMODE((tmp_path / "h" / "tls.pem").stat().st_mode) == 0o600
        with pytest.raises(RuntimeError, match="HAProxy does not take the certificate"):
            show(tmp_path, b"no certificate")


@pytest.mark.parametrize("bind", ["[::]:8443 v4v6", "[::1]:8443", "0.0.0.0:8443"])
def test_where_the_api_listens_is_haproxys_business(tmp_path: Path, bind: str) -> None:
    variables = environment(tmp_path, free_port, bind)
    config = write_rays(variables, 8000, 8001)
    check = [variables["RAY_SERVE_HAPROXY_BINARY_PATH"], "-c", "-f", str(config)]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"\n    bind {bind}\n" in config.read_text()
    assert ":8000" not in config.read_text()


@contextmanager
def proxied(
    folder: Path, handler: type[BaseHTTPRequestHandler], changes: dict[str, int] | None = None
) -> Iterator[int]:
    """Run HAProxy in front of a server, with lines of its corrected configuration replaced; gives its port."""
    port = free_port()
    variables = environment(folder, free_port)
    start = [variables["RAY_SERVE_HAPROXY_BINARY_PATH"], "-db", "-f"]
    with ExitStack() as stack:
        server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        config = write_rays(variables, port, server.server_port)
        (folder / "rays.cfg").write_text(config.read_text())
        assert subprocess.run([*start, str(config), "-c"], capture_output=True).returncode == 0
        text = config.read_text()
        for limit, value in (changes or {}).items():
            assert re.search(rf"\b{limit} \d+", text)
            text = re.sub(rf"\b{limit} \d+", f"{limit} {value}", text)
        config.write_text(text)
        stack.callback((process := subprocess.Popen([*start, str(config)])).wait)
        stack.callback(process.terminate)
        until(lambda: name(process.pid) == "haproxy" and listens(port))
        yield port


def test_one_that_is_slow_is_left_alone(tmp_path: Path) -> None:
    """On a busy machine a healthy HAProxy gets no processor for seconds: stopped for as long as several looks take, it
    is there afterwards, and its connections are."""
    with proxied(tmp_path, Scheme) as port, httpx.Client(timeout=20) as client:
        url = f"http://127.0.0.1:{port}/"
        assert client.get(url).status_code == 200
        until(lambda: bool(watchers(tmp_path)))
        ((watcher, parent),) = watchers(tmp_path).items()
        os.kill(parent, signal.SIGSTOP)
        looks = voluntary_switches(watcher) + 5 * round(1.0 / stand_in.LOOK_S)
        until(lambda: voluntary_switches(watcher) > looks)
        os.kill(parent, signal.SIGCONT)
        assert client.get(url).status_code == 200
        assert name(parent) == "haproxy"
        assert not children_of(watcher)


def voluntary_switches(pid: int) -> int:
    """Return how often a process has waited for something so far: a watcher once a look."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("voluntary_ctxt")).split()[1])


def test_one_that_dies_has_a_stand_in_until_ray_has_another(tmp_path: Path) -> None:
    """Ray gets no answers from it, so that it notices."""
    with ExitStack() as stack:
        port = stack.enter_context(proxied(tmp_path, Scheme))
        url, config = f"http://127.0.0.1:{port}/", next((tmp_path / "h").rglob("haproxy.cfg"))
        until(lambda: bool(watchers(tmp_path)))  # the process may be there, and not have its name yet
        ((watcher, parent),) = watchers(tmp_path).items()
        os.kill(parent, signal.SIGKILL)
        until(lambda: name(parent) is None)
        until(lambda: answers(url))  # the one that died may leave its port open for a moment
        with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as admin:
            admin.connect(str(next((tmp_path / "h").rglob("admin"))))
        rays = (tmp_path / "rays.cfg").read_text()
        knows_no_application = re.sub(r"    use_backend api.*\n|backend api\n.*\n.*\n", "", rays)
        start = [str(tmp_path / "h" / "haproxy"), "-db", "-dR", "-f", str(config)]
        config.write_text(knows_no_application)
        assert subprocess.run([*start, "-c"], capture_output=True).returncode == 0  # as Ray checks it
        stack.callback((first := subprocess.Popen(start)).wait)
        stack.callback(first.terminate)
        until(lambda: stand_in._has(config, set()))
        assert all(httpx.get(url, timeout=20).status_code == 200 for _ in range(20))
        assert watcher in stand_ins(tmp_path)
        config.write_text(rays)
        admin = str(next((tmp_path / "h").rglob("admin")))
        stack.callback((process := subprocess.Popen([*start, "-sf", str(first.pid), "-x", admin])).wait)
        stack.callback(process.terminate)
        until(lambda: watcher not in stand_ins(tmp_path))
        assert httpx.get(url, timeout=20).status_code == 200


def test_a_stand_in_that_dies_has_a_successor(tmp_path: Path) -> None:
    with proxied(tmp_path, Scheme) as port:
        url = f"http://127.0.0.1:{port}/"
        until(lambda: bool(watchers(tmp_path)))
        ((watcher, parent),) = watchers(tmp_path).items()
        os.kill(parent, signal.SIGKILL)
        until(lambda: bool(children_of(watcher)) and answers(url))
        (first,) = children_of(watcher)
        config = next((tmp_path / "h").rglob("stand-in.cfg"))
        until(lambda: (config.parent / "spare").exists() and stand_in._has(config, set()))
        os.kill(first, signal.SIGKILL)
        until(lambda: children_of(watcher) not in ([], [first]))
        until(lambda: answers(url))
        assert name(first) is None


def children_of(parent: int) -> list[int]:
    pids = [int(process.name) for process in Path("/proc").iterdir() if process.name.isdigit()]
    found = []
    for pid in pids:
        with suppress(OSError):
            found += [pid] if parent_of(pid) == parent else []
    return found


def test_a_stand_in_does_not_begin_whose_watcher_has_just_ended() -> None:
    """Else it would outlive its cluster."""
    orphaned = partial(stand_in._end_with, parent_of(os.getpid()))
    with subprocess.Popen(["sleep", "60"], preexec_fn=orphaned) as process:
        try:
            assert process.wait(20) == 1
        finally:
            process.kill()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=20).status_code == 200
    except httpx.ConnectError:
        return False


class Body(Quiet):
    """unread: set when a client has taken in no more of an answer."""

    unread = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            for _ in range(200):
                self.wfile.write(b" " * 2**20)
        except OSError:
            self.unread.set()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(2.5)  # longer than a client may be silent while it sends or reads
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"late")


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "said",
    [b"", HEAD, HEAD + b"Content-Length: 10\r\n\r\nhalf"],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_request_comes_in_time_or_not_at_all(tmp_path: Path, said: bytes) -> None:
    """And no replica hears of it."""
    with (
        proxied(tmp_path, Body, {"timeout http-request": 1}) as port,
        socket.create_connection(("127.0.0.1", port), 20) as client,
    ):
        client.sendall(said)
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_reads_nothing_is_let_go_and_one_that_waits_is_not(tmp_path: Path) -> None:
    with proxied(tmp_path, Body, {"timeout client": 1}) as port:
        with socket.create_connection(("127.0.0.1", port), 20) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert Body.unread.wait(20)
        assert httpx.post(f"http://127.0.0.1:{port}/", json={}, timeout=20).text == "late"


def test_one_address_does_not_take_all_connections(tmp_path: Path) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(proxied(tmp_path, Scheme, {"maxconn": 20, "src_conn_cur ge": 10}))

        held, rejected = select.poll(), 0
        for _ in range(40):
            client = stack.enter_context(socket.socket())
            client.bind(("127.0.0.2", 0))
            try:
                client.connect(("127.0.0.1", port))
            except ConnectionResetError:
                rejected += 1
            else:
                held.register(client, select.POLLIN)
        until(lambda: rejected + len(held.poll(0)) == 30)
        assert httpx.get(f"http://127.0.0.1:{port}/", timeout=20).status_code == 200


def test_half_of_the_connections_are_for_one_address(variables: dict[str, str]) -> None:
    config = write_rays(variables, 8000, 8001)
    check = [variables["RAY_SERVE_HAPROXY_BINARY_PATH"], "-c", "-f", str(config)]
    assert subprocess.run(check, capture_output=True).returncode == 0
    most = int(variables["RAY_SERVE_HAPROXY_MAXCONN"])
    assert 100 < most <= 16_000
    assert f"reject if {{ src_conn_cur ge {most // 2} }}" in config.read_text()


def test_pipelined_requests_are_answered_in_their_order(tmp_path: Path) -> None:
    """A body that pretends to be a request is none."""

    class Paths(Quiet):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            said = f"{self.path} {len(body)};".encode()
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

    hidden = b"POST /hidden HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    request = b"POST /%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n" + hidden
    last = b"Connection: close\r\n"
    requests = [request % (n, len(hidden), last if n == 49 else b"") for n in range(50)]
    with (
        proxied(tmp_path, Paths) as port,
        socket.create_connection(("127.0.0.1", port), 20) as client,
    ):
        client.sendall(b"".join(requests))
        said = b"".join(iter(lambda: client.recv(2**16), b"")).decode()
    assert re.findall(r"(/\w+) (\d+);", said) == [(f"/{n}", str(len(hidden))) for n in range(50)]


def test_a_connection_outlives_the_haproxy_that_took_it(variables: dict[str, str]) -> None:
    """The stream continues; later requests over it go to the new destination, from the client's address."""
    ending, heard = threading.Event(), list[str]()

    class Old(Quiet):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"1\r\na\r\n")
            ending.wait(20)
            self.wfile.write(b"1\r\nb\r\n0\r\n\r\n")
            self.close_connection = True  # it goes

    class New(Quiet):
        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            heard.append(self.headers.get_all("X-Forwarded-For")[-1])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"new")

    port, start = free_port(), [variables["RAY_SERVE_HAPROXY_BINARY_PATH"], "-db", "-f"]
    url = f"http://127.0.0.1:{port}/"
    elsewhere = httpx.HTTPTransport(local_address="127.0.0.2")
    with ExitStack() as stack:
        old, new = [stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), kind)) for kind in (Old, New)]
        for server in (old, new):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(new.shutdown)
        stack.callback(ending.set)
        config = str(write_rays(variables, port, old.server_port))
        stack.callback((first := subprocess.Popen([*start, config])).wait)
        stack.callback(first.terminate)
        until(lambda: name(first.pid) == "haproxy" and listens(port))
        client = stack.enter_context(httpx.Client(transport=elsewhere))
        with client.stream("POST", url, json={}) as reply:
            parts = reply.iter_text()
            assert next(parts) == "a"
            config = str(write_rays(variables, port, new.server_port))
            taking_over = ["-sf", str(first.pid), "-x", variables["RAY_SERVE_HAPROXY_SOCKET_PATH"]]
            stack.callback((second := subprocess.Popen([*start, config, *taking_over])).wait)
            stack.callback(second.terminate)
            until(lambda: httpx.get(url).status_code == 204)
            old.shutdown()
            old.server_close()
            ending.set()
            assert list(parts) == ["b"]
        assert first.poll() is None, "it has the client's connection"
        assert client.post(url, json={}).text == "new"
        assert heard[-1] == "127.0.0.2"
        until(lambda: first.poll() is not None)


def test_a_replica_that_goes_with_nothing_said_loses_no_request(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    seen: list[str] = []

    class Going(Quiet):
        def do_POST(self) -> None:  # read, and not answered
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append("going")

    class Staying(Quiet):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append("staying")
            self.send_response(200)
            self.end_headers()

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
