"""`tandem up` and `tandem down`, as a person runs them, and that they leave no process behind."""

from __future__ import annotations

import asyncio
import ctypes
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_IMODE
from typing import Any

import httpx
import pytest
import yaml
from rich.console import Console

import tandem
from tandem.app.cli.server.front import Wishes
from tandem.app.cli.server.local_ray import free_port
from tandem.app.cli.server.processes import PR_SET_CHILD_SUBREAPER, Process, alive, collect, descendants
from tandem.app.cli.server.up import (
    CONFIG,
    LEDGER,
    RECORD,
    UpError,
    down,
    explain,
    gateway_here,
    read,
    running,
    tries,
    up,
)
from tandem.app.device.settings import DeviceProgram
from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.gateway.client import Uplink
from tandem.engine.null.engine import NullEngine
from tests.app.cli.started import started
from tests.docs.documents import ROOT, shell

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("ray")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def config(folder: Path) -> Path:
    return least(folder)


def least(folder: Path, **engine: Any) -> Path:
    """Write the checked-in YAML with the least that can answer. engine: further settings of the verifier's."""
    deployment: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    deployment["http_options"]["port"] = free_port()
    deployment["applications"][0]["args"] |= {
        "verifier": {"engine": {"kind": "null"} | engine},
        "drafter": {"replicas": 0},
        "expander": {"replicas": 0},
        "hosts": [],
    }
    path = folder / "least.yaml"
    path.write_text(yaml.safe_dump(deployment))
    return path


@dataclass(frozen=True)
class Server:
    """`tandem up` with this configuration, in its folder."""

    config: Path
    process: subprocess.Popen[str]

    @property
    def folder(self) -> Path:
        return self.config.parent


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Server]]:
    """Start a server, unless the last one still runs: a start is half a minute's work for a core."""
    with ExitStack() as stack:
        servers: list[Server] = []

        def start_or_reuse() -> Server:
            if not servers or servers[-1].process.poll() is not None:
                config = least(tmp_path_factory.mktemp("up"), tokens_per_s=20)
                gateway = "--gateway", "--gateway-port", str(free_port())
                servers.append(Server(config, stack.enter_context(started(config.parent, config, *gateway))))
            return servers[-1]

        yield start_or_reuse


@pytest.fixture
def server(start: Callable[[], Server], monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server that runs, in the folder from which it was started."""
    server = start()
    monkeypatch.chdir(server.folder)
    return server


def recorded(folder: Path) -> list[Process]:
    return [Process(*process) for process in json.loads((folder / RECORD).read_text())["processes"]]


def name(process: Process) -> str | None:
    """The program it runs; None once it is gone."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process.pid}/comm").read_text().strip()
    return None


def wait_until_gone(processes: list[Process], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while left := [process for process in processes if alive(process)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_it_answers_and_says_so(server: Server) -> None:
    levels = {os.getpriority(os.PRIO_PROCESS, p.pid) for p in recorded(server.folder) if alive(p)}
    assert levels == {os.getpriority(os.PRIO_PROCESS, 0)}, "none gives way to other programs"
    assert (address := running())
    assert httpx.get(f"{address}/readyz").status_code == 200
    with pytest.raises(UpError, match="up already"):
        up(config=server.config)


async def test_the_first_devices_key_opens_its_gateway(server: Server) -> None:
    """With the certificate that the key names, at an address that no certificate was made for."""
    gateway = gateway_here(running() or "")
    assert gateway is not None
    port = gateway[0].rpartition(":")[2]
    key = server.folder / ".tandem" / "my-laptop.key"
    program = DeviceProgram.model_validate({"connect": f"localhost:{port}", "key": key})
    uplink = Uplink(
        program.connect,
        program.secret(),
        NullEngine(),
        lambda: DeviceRecord(name="", address="", profile="native", model="null", vocabulary="v"),
        tls=program.tls(),
        settings=program.wire(),
    )
    dialling = asyncio.create_task(uplink.run())
    async with asyncio.timeout(60):
        await uplink.connected()
    assert uplink.registered is not None
    dialling.cancel()
    await asyncio.wait((dialling,))


def test_serve_status_as_the_documentation_has_it(server: Server) -> None:
    lines = shell(ROOT / "docs" / "operations.md")
    begin = next(i for i, line in enumerate(lines) if line.startswith("of_up()"))
    commands = lines[begin : begin + 3]
    assert commands[-1].startswith("serve status")
    there = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    told = subprocess.run(
        ["bash", "-ec", "\n".join(commands)],
        cwd=server.folder,
        env=others | there,
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    (application,) = yaml.safe_load(told.stdout)["applications"].values()
    assert application["status"] == "RUNNING"
    assert {"Ingress", "Router", "Verifier"} <= application["deployments"].keys()


def listening(processes: list[Process]) -> dict[str | None, set[str]]:
    """Addresses at which these listen for TCP, by the program's name."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                sockets[fields[9]] = fields[1].rpartition(":")[0]
    found: dict[str | None, set[str]] = {}
    for process in processes:
        with suppress(FileNotFoundError, ProcessLookupError):  # some of Ray's live for moments
            program = name(process)
            for inode in inodes(process) & sockets.keys():
                found.setdefault(program, set()).add(sockets[inode])
    return found


def whole(program: subprocess.Popen[str]) -> list[Process]:
    """Return all processes below a program, once a HAProxy that listens is among them: with new settings another takes
    over, which the record does not have."""
    deadline = time.monotonic() + 60
    while "haproxy" not in listening(found := descendants(program.pid)):
        assert time.monotonic() < deadline, [name(process) for process in found]
        time.sleep(0.1)
    return found


def inodes(process: Process) -> set[str]:
    """Return the inodes of its open sockets."""
    held = set()
    for file in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            held.add(os.readlink(file).removeprefix("socket:[").rstrip("]"))
    return held


def test_everything_but_serves_own_calls_listens_on_loopback(server: Server) -> None:
    found = listening(whole(server.process))
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    assert {name for name, addresses in found.items() if not addresses <= loopback} <= {"ray::ServeRepli"}


def test_ctrl_c_leaves_nothing(server: Server) -> None:
    processes = recorded(server.folder)
    assert len(processes) > 5
    os.killpg(server.process.pid, signal.SIGINT)  # as a terminal does: to all in the foreground
    assert server.process.wait(30) == 0
    wait_until_gone(processes, within_s=1.0)
    assert running() is None
    assert not down(), "nothing is left to stop"


@pytest.fixture
def nobody_collects() -> Iterator[None]:
    """Orphans stay in the process table once they are dead, as where process 1 is not a real init. Ray's workers take
    a raylet for alive as long as it is there."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.slow  # a second server
def test_a_killed_proxy_breaks_no_answer_of_a_client_that_comes_back(server: Server) -> None:
    """The replica of the API and its answer live on."""
    address = running()
    assert address is not None
    with tandem.Client(address) as client:
        expected = client.ask("Hello?", max_tokens=100).text
        with client.stream("Hello?", max_tokens=100, resumable=True) as stream:
            next(stream)
            killed = [process for process in descendants(server.process.pid) if name(process) == "haproxy"]
            for process in killed:
                os.kill(process.pid, signal.SIGKILL)
            for _ in stream:
                pass
    assert killed
    assert (stream.answer.text, stream.answer.finish) == (expected, "length")


@pytest.mark.slow  # as above; `test_guard` tests what ends its processes
@pytest.mark.usefixtures("nobody_collects")
def test_after_a_kill_nothing_lives_on(server: Server) -> None:
    processes = [*recorded(server.folder), *whole(server.process)]
    ray_folder = Path(json.loads((server.folder / RECORD).read_text())["folder"])
    assert S_IMODE(ray_folder.stat().st_mode) == 0o700
    server.process.kill()
    server.process.wait(10)
    wait_until_gone(processes, within_s=10.0)
    assert not down(), "it was not running any more"
    assert not ray_folder.exists()
    collect(processes)


@pytest.mark.nightly  # minutes, in which no other test gets on
@pytest.mark.timeout(1800)
def test_it_starts_on_a_starved_machine(folder: Path, config: Path) -> None:
    """Beside eight programs that never rest, with the niceness of its own."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        with started(folder, config):
            assert all(program.poll() is None for program in busy)
            assert httpx.get(f"{running()}/readyz", timeout=60).status_code == 200
    finally:
        for program in busy:
            program.kill()
            program.wait()


@pytest.mark.slow  # another Ray
@pytest.mark.timeout(660)  # minutes on a busy machine
def test_a_start_that_fails_says_why_and_keeps_its_logs(folder: Path, config: Path) -> None:
    deployment = yaml.safe_load(config.read_text())
    broken = folder / "broken.sqlite"
    broken.write_text("no database")
    deployment["applications"][0]["args"]["ledger"] = {"path": str(broken)}
    config.write_text(yaml.safe_dump(deployment))
    command = [Path(sys.executable).with_name("tandem"), "up", "--config", config]
    once = os.environ | {"RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1"}  # without it, Serve tries three times
    done = subprocess.run(
        command, cwd=folder, env=once, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 1
    reason, logs = done.stderr.splitlines()[-2:]
    assert "Access: " in reason
    assert str(broken) in reason
    assert logs == "Logs: .tandem/logs"
    assert list((folder / ".tandem" / "logs" / "serve").glob("replica_tandem_Access_*"))
    assert running() is None


def test_a_port_that_is_taken_is_named(config: Path) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UpError, match=f"127.0.0.1:{port} cannot be used"):
            up(Wishes(port=port), config)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"applications": None}, "applications"),
        ({"applications": []}, "no application has the import_path tandem.app.main:build"),
        ({"applications": [{"import_path": "other:app"}]}, "no application has the import_path"),
        ({"applications": [{"import_path": "tandem.app.main:build", "args": None}]}, "applications.0.args"),
        ({"http_options": None}, "http_options"),
        ({"http_options": {"port": "high"}}, "http_options.port"),
    ],
)
def test_a_serve_yaml_that_cannot_be_deployed(config: Path, change: dict[str, Any], says: str) -> None:
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | change))
    with pytest.raises(UpError, match=says):
        up(config=config)


@pytest.mark.parametrize("text", ["", "- a list", "{broken"])
def test_a_file_that_is_no_serve_yaml(config: Path, text: str) -> None:
    config.write_text(text)
    with pytest.raises(UpError, match="least.yaml"):
        up(config=config)


def test_the_least_that_a_serve_yaml_may_say(tmp_path: Path) -> None:
    """The application then listens on loopback only, unlike Serve's default. Other applications are deployed beside
    it."""
    other = {"name": "other", "import_path": "other:app", "args": {"its": "own"}, "route_prefix": "/other"}
    ours = {"name": "tandem", "import_path": "tandem.app.main:build", "args": {"model": "mine"}}
    applications = [other, ours]
    path = tmp_path / "short.yaml"
    path.write_text(yaml.safe_dump({"applications": applications}))
    plan = read(path)
    assert (plan.address, plan.model) == ("http://127.0.0.1:8000", "mine")
    kept = {"model": "mine", "ledger": {"path": str(LEDGER.absolute())}}
    assert plan.deployment == {
        "applications": [other, ours | {"args": kept}],
        "http_options": {"host": "127.0.0.1", "port": 8000},
    }
    assert read(path, Wishes(port=8123)).address == "http://127.0.0.1:8123"


@pytest.mark.parametrize(
    ("host", "dialled"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("10.1.2.3", "10.1.2.3")]
)
def test_where_it_listens_everywhere_it_is_dialled_on_this_machine(
    config: Path, host: str, dialled: str
) -> None:
    deployment = yaml.safe_load(config.read_text())
    deployment["http_options"] = {"host": host, "port": 8123}
    config.write_text(yaml.safe_dump(deployment))
    with pytest.raises(UpError, match=f"least.yaml: listening on {host}, beyond this machine, needs TLS"):
        read(config)
    assert read(config, Wishes(insecure=True)).address == f"http://{dialled}:8123"


def test_the_model_is_called_as_in_the_settings(config: Path) -> None:
    """In the command that is printed to try it."""
    config.write_text(config.read_text().replace("model: tandem", "model: my-model"))
    console = Console(file=io.StringIO())
    explain(console, read(config), 1.0)
    assert '"model": "my-model"' in console.file.getvalue()  # type: ignore[attr-defined]


def test_what_to_try_names_an_address_only_where_it_is_another_one(config: Path) -> None:
    assert "--url" not in tries(read(config, Wishes(port=8000)))[-1]
    assert tries(read(config, Wishes(port=8123)))[-1].endswith("--url http://127.0.0.1:8123")


def test_a_mistake_in_the_settings_is_told_before_anything_starts(config: Path) -> None:
    config.write_text(config.read_text().replace("kind: 'null'", "kind: abacus"))
    with pytest.raises(UpError, match="abacus"):
        up(config=config)
