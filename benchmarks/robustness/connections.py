"""Hostile connections: whether API and gateway answer others while one machine holds all the connections it can.

    tandem benchmark connections [--connections 10000]

The application with a null engine is attacked from one address (127.0.0.2), and used from another one: connections that
say nothing, requests that come a byte at a time (slowloris; in the head, and in the body), answers that nobody reads,
and requests that come in one piece (pipelining). The gateway meets the silent ones and those that come byte by byte.

…_held: connections that were open at once, of those attempted.
…_ms: time of an honest request meanwhile (median, slowest), or of an honest device's connection.
…_closed_s: from the begin of the attack until the last of its connections was closed; null: not within three minutes.
…_mb: growth of the resident memory of all of the application's processes.
pipelined: answers in their order, of those asked for.
failed: honest requests without an answer.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from tandem.app.cli.server.processes import descendants
from tandem.app.cli.server.up import RECORD
from tandem.benchmarks import report
from tandem.benchmarks.application import application
from tandem.cluster.wire.client import connect
from tandem.engine.base import EngineError

ATTACKER = "127.0.0.2"
HONEST = 40
"""Requests whose time is taken during an attack."""
SETTLED_S = 2.0
PATIENCE_S = 180.0
AT_ONCE = 200
"""Connections that are being opened."""
SPARE = 500
"""File descriptors for all else."""
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = HEAD + b"Content-Length: 1000\r\n\r\n"
BIG = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20
"""Requests for more than the buffers of a connection take."""
READING_SHARE = 400
"""Connections for each one with BIG: those requests do cost something."""
PIPELINED = 500


class Held(asyncio.Protocol):
    """An attacker's connection. begin: said at once; reads: whether it reads what comes back."""

    def __init__(self, begin: bytes, reads: bool) -> None:
        self._begin, self._reads = begin, reads
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.open = transport, True
        transport.write(self._begin)
        if not self._reads:
            transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False


class Attack:
    """Connections from one address to another. begin: said at once; drip: said by each, a byte a second; reads: whether
    it reads what comes back."""

    def __init__(self, address: tuple[str, int], begin: bytes = b"", drip: bytes = b"", reads: bool = True):
        self._address, self._begin, self._drip, self._reads = address, begin, drip, reads
        self.held: list[Held] = []
        self._began_s = 0.0

    async def begin(self, count: int) -> int:
        """Open so many connections; return how many are open a little later."""
        gate, loop = asyncio.Semaphore(AT_ONCE), asyncio.get_running_loop()
        self._began_s = time.monotonic()

        async def dial() -> None:
            async with gate:
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(5.0):
                        _, held = await loop.create_connection(
                            lambda: Held(self._begin, self._reads), *self._address, local_addr=(ATTACKER, 0)
                        )
                        self.held.append(held)

        await asyncio.gather(*(dial() for _ in range(count)))
        self._dripping = loop.create_task(self._drips())
        await asyncio.sleep(SETTLED_S)
        return established(self._address[1])

    async def _drips(self) -> None:
        for byte in self._drip:
            for held in self.held:
                if held.open:
                    held.transport.write(bytes([byte]))
            await asyncio.sleep(1.0)

    async def end(self) -> float:
        """Wait until the other side has closed all; return the seconds since the begin, or infinity."""
        while (left := established(self._address[1])) and time.monotonic() - self._began_s < PATIENCE_S:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        took_s = float("inf") if left else time.monotonic() - self._began_s
        self._dripping.cancel()
        for held in self.held:
            held.transport.abort()
        return took_s


def established(port: int) -> int:
    """Return how many connections the attacker has to that port, as the other side sees them: who reads nothing does
    not see the end."""
    number = f"{int.from_bytes(socket.inet_aton(ATTACKER), 'little'):08X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    ends = [line.split()[1:4] for line in lines]
    return sum(
        here.endswith(f":{port:04X}") and there.startswith(number) and state == "01"
        for here, there, state in ends
    )


@asynccontextmanager
async def attacked(
    name: str, attack: Attack, count: int, memory: Callable[[], float], figures: dict[str, Any]
) -> AsyncIterator[None]:
    before_mb = memory()
    figures[f"{name}_held"] = await attack.begin(count)
    yield
    figures[f"{name}_mb"] = round(memory() - before_mb, 1)
    figures[f"{name}_closed_s"] = await attack.end()


async def honest(ask: Callable[[], Any]) -> tuple[list[float], int]:
    """Return the times of honest requests, milliseconds, and how many failed."""
    took_ms, failed = [], 0
    for _ in range(HONEST):
        began_s = time.perf_counter()
        try:
            await ask()
        except (OSError, TimeoutError, httpx.HTTPError, EngineError) as error:
            print(f"  an honest request failed: {error!r}")
            failed += 1
        took_ms.append(1e3 * (time.perf_counter() - began_s))
    return [median(took_ms), max(took_ms)], failed


def resident_mb(pids: Sequence[int]) -> float:
    """Return the resident memory of processes."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            total += pages * resource.getpagesize()
    return total / 1e6


async def pipelined(address: tuple[str, int]) -> int:
    """Return how many of PIPELINED requests in one piece are answered in their order."""
    paths = ["/healthz" if number % 2 else f"/nothing{number}" for number in range(PIPELINED)]
    asked = "".join(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n" for path in paths[:-1])
    asked += f"GET {paths[-1]} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection(*address)
    writer.write(asked.encode())
    answers = 0
    async with asyncio.timeout(60):
        said = (await reader.read(-1)).decode()
    writer.close()
    for path, answer in zip(paths, said.split("HTTP/1.1 ")[1:], strict=False):
        right = answer.startswith("200") if path == "/healthz" else f'{path}"' in answer
        answers += right
    return answers


async def measure(url: str, folder: Path, count: int) -> dict[str, Any]:
    """Attack after attack."""
    found: dict[str, Any] = {"connections": count, "failed": 0}
    host, port = url.removeprefix("http://").split(":")
    api = host, int(port)
    up, *_ = json.loads((folder / RECORD).read_text())["processes"]

    def memory() -> float:
        return resident_mb([process.pid for process in descendants(up[0])])

    async with httpx.AsyncClient(base_url=url, timeout=10) as http:
        ready = (await http.get("/readyz")).raise_for_status().json()
        key = (
            (await http.post("/v1/keys", json={"name": "probe", "role": "device"})).raise_for_status().json()
        )
        gateway_host, _, gateway_port = ready["gateway"].rpartition(":")
        gateway = gateway_host, int(gateway_port)
        body = {
            "model": "null",
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 4,
            "temperature": 0,
        }

        async def ask() -> None:
            async with httpx.AsyncClient(base_url=url, timeout=10) as fresh:
                (await fresh.post("/v1/chat/completions", json=body)).raise_for_status()

        async def dial() -> None:
            async with asyncio.timeout(10):
                connection = await connect(ready["gateway"], token=key["secret"])
            await connection.close()

        attacks = (
            ("api_idle", Attack(api), count, ask),
            ("api_slow_head", Attack(api, HEAD, b"X-Slow: " + b"a" * 1000), count, ask),
            ("api_slow_body", Attack(api, BODY, b" " * 1000), count, ask),
            ("api_unread", Attack(api, BIG, reads=False), count // READING_SHARE, ask),
            ("gateway_idle", Attack(gateway), count, dial),
            ("gateway_slow", Attack(gateway, b"\x00", b"\x00" * 1000), count, dial),
        )
        found["api_alone_ms"], _ = await honest(ask)
        found["gateway_alone_ms"], _ = await honest(dial)
        for name, attack, size, probe in attacks:
            async with attacked(name, attack, size, memory, found):
                found[f"{name}_ms"], failed = await honest(probe)
                found["failed"] += failed
            print(name, {k: v for k, v in found.items() if k.startswith(name)})
        found["pipelined"] = await pipelined(api)
    return found


def settings(folder: Path) -> dict[str, Any]:
    return {
        "model": "null",
        "tokenizer": "target",
        "verifier": {"replicas": 1, "engine": {"kind": "null", "context": 4096}},
        "drafter": {"replicas": 0},
        "gateway": {"port": 0},
        "ledger": {"path": str(folder / "ledger.sqlite")},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = report.parser("connections", __doc__)
    parser.add_argument("--connections", type=int, default=10_000, help="of an attack (%(default)s)")
    options = parser.parse_args(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count = min(options.connections, most - SPARE)
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        with application(settings(folder), folder) as (host, port):
            report.figures("connections", asyncio.run(measure(f"http://{host}:{port}", folder, count)))


if __name__ == "__main__":
    main()
