"""`tandem device` on a machine of its own, as far as the kernel can tell: a network namespace, a cable, TLS."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tandem.engine import family
from tandem.engine.torch.split import bundle
from tests.app.device.asking import MEMORY, QUESTIONS, listed, said
from tests.applications import deployed, until
from tests.cluster.certificate import make_certificate
from tests.conftest import Running

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.slow,
    pytest.mark.alone,
]  # it waits for as long as connections may be silent

HERE, THERE = "10.177.0.1", "10.177.0.2"
NEAR, FAR = "tandem-near", "tandem-far"
DELAY = ["delay", "10ms", "2ms", "loss", "1%"]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@dataclass
class Machine:
    """A network namespace, held by a process, at the other end of a cable. delayed: the cable delays and loses, too."""

    pid: int
    delayed: bool

    def inside(self, *command: str | Path) -> list[str | Path]:
        return ["nsenter", "-t", str(self.pid), "-n", *command]

    def cut(self) -> None:
        """Cut the link, without any error on either side."""
        ip("link", "set", NEAR, "down")

    def heal(self) -> None:
        ip("link", "set", NEAR, "up")


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with ExitStack() as stack:
        try:
            ip("link", "add", "name", NEAR, "type", "veth", "peer", "name", FAR)
            stack.callback(subprocess.run, ["ip", "link", "del", NEAR], capture_output=True)
            holder = stack.enter_context(subprocess.Popen(["unshare", "-n", "sleep", "infinity"]))
            stack.callback(holder.kill)
            made = Machine(holder.pid, False)
            ours = os.readlink("/proc/self/ns/net")
            while os.readlink(f"/proc/{holder.pid}/ns/net") == ours:
                assert holder.poll() is None
            ip("link", "set", FAR, "netns", str(holder.pid))
            ip("addr", "add", f"{HERE}/24", "dev", NEAR)
            ip("link", "set", NEAR, "up")
            for words in (
                ["addr", "add", f"{THERE}/24", "dev", FAR],
                ["link", "set", FAR, "up"],
                ["link", "set", "lo", "up"],
            ):
                subprocess.run(made.inside("ip", *words), check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"the kernel does not allow network namespaces here: {error}")
        with suppress(OSError, subprocess.CalledProcessError):  # not every kernel has it
            subprocess.run(
                ["tc", "qdisc", "add", "dev", NEAR, "root", "netem", *DELAY], check=True, capture_output=True
            )
            made.delayed = True
        yield made


@dataclass(frozen=True)
class Cloud:
    """address: of its API; authority: who vouches for its gateway."""

    address: str
    authority: Path


@pytest.fixture(scope="module")
def cloud(
    machine: Machine, application: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    """An application whose gateway listens at this end of the cable. It comes after the cable and goes before it."""
    folder = tmp_path_factory.mktemp("gateway")
    certificate, key = make_certificate(folder, HERE)
    settings = {
        "verifier": {"engine": {"kind": "null"}},
        "drafter": {"replicas": 0},
        "middle": {"replicas": 1, "engine": {"model": "target", "first": 2} | MEMORY},
        "ledger": {"path": folder / "ledger.sqlite"},
        "gateway": {"host": HERE, "port": 0, "tls": {"certificate": certificate, "key": key}},
    }
    with deployed(settings, "apart", application) as address:
        yield Cloud(address, certificate)


@pytest.fixture
async def http(cloud: Cloud) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=cloud.address, timeout=60) as client:

        async def up() -> bool:
            ready = (await client.get("/readyz")).json()
            return ready.get("status") == "ready" and ready["middle"] == 1

        await until(up)
        yield client


@contextmanager
def device(machine: Machine, folder: Path, *options: str | Path) -> Iterator[subprocess.Popen[str]]:
    """The program, there."""
    command = machine.inside(Path(sys.executable).with_name("tandem"), "device", *options)
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            said_last, _ = process.communicate(timeout=30)
            assert process.returncode == 0, said_last


OUTAGE_S = 9.0
"""Longer than a connection may be silent, so that both sides take it for broken."""


async def test_a_device_behind_a_cable_that_is_cut_and_healed(
    machine: Machine, http: httpx.AsyncClient, cloud: Cloud, tmp_path: Path
) -> None:
    """An answer for its owner, in whose middle nothing travels for a while."""
    made = (await http.post("/v1/keys", json={"name": "box", "role": "device"})).raise_for_status().json()
    (tmp_path / "box.key").write_text(made["secret"])
    bundle.write(family.path("target"), 2, tmp_path / "model", family.adapter())
    gateway = (await http.get("/readyz")).json()["gateway"]
    options = ["--connect", gateway, "--key", "box.key", "--authority", cloud.authority, "--model", "model"]
    outages = []

    def cut() -> None:
        machine.cut()
        outages.append(asyncio.get_running_loop().call_later(OUTAGE_S, machine.heal))

    with device(machine, tmp_path, *options):
        await until(lambda: listed(http, "box"))
        whole, _ = await said(cloud.address, QUESTIONS[0], 200, mode="device", device="box")
        expected, _ = await at_home(machine, lambda: None)
        text, stats = await at_home(machine, cut)
        assert (text, stats["mode"], stats["replans"]) == (expected, "split", 0)
        assert len(text) > 200
        assert outages
        await until(lambda: listed(http, "box"))  # it may have been away for too long to stay in the list
        text, stats = await said(cloud.address, QUESTIONS[0], 200, mode="device", device="box")
        assert (text, stats["replans"]) == (whole, 0), "and the cloud reaches it as before"


ASK = """
import httpx, sys
body = {
    "model": "tandem", "stream": True, "temperature": 0, "max_tokens": 200, "tandem": {"mode": "split"},
    "messages": [{"role": "user", "content": sys.argv[1]}],
}
with httpx.stream("POST", "http://127.0.0.1:8001/v1/chat/completions", json=body, timeout=60) as reply:
    for line in reply.iter_lines():
        print(line, flush=True)
"""


async def at_home(machine: Machine, in_the_middle: Callable[[], object]) -> tuple[str, dict[str, Any]]:
    """Return the answer to the owner there in mode split, and its usage. in_the_middle: called after the third
    piece."""
    process = await asyncio.create_subprocess_exec(
        *machine.inside(sys.executable, "-c", ASK, QUESTIONS[0]), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    text, stats, pieces = "", {}, 0
    async for line in process.stdout:
        if line.startswith(b"data: {"):
            chunk = json.loads(line.removeprefix(b"data: "))
            text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
            stats = chunk.get("tandem", {}).get("stats", stats)
            pieces += 1
            if pieces == 3:
                in_the_middle()
    assert await process.wait() == 0
    return text, stats


async def test_a_certificate_of_somebody_elses_is_refused(
    machine: Machine, http: httpx.AsyncClient, cloud: Cloud, tmp_path: Path
) -> None:
    """Before the key has been shown."""
    made = (await http.post("/v1/keys", json={"name": "duped", "role": "device"})).raise_for_status().json()
    (tmp_path / "duped.key").write_text(made["secret"])
    gateway = (await http.get("/readyz")).json()["gateway"]
    others, _ = make_certificate(tmp_path, HERE)
    options = ["--connect", gateway, "--key", "duped.key", "--authority", others, "--listen", "127.0.0.1:0"]
    with device(machine, tmp_path, *options) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "no connection" in line)
        assert "certificate" in line.lower() or "certificate" in next(process.stdout).lower()
    assert not await listed(http, "duped")
