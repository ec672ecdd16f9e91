"""Live chaos: when everything counts as ready again, and a device's program that is started again."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tandem.app.cli.server.processes import Process
from tandem.benchmarks.robustness import chaos_live, dialled
from tandem.benchmarks.robustness.chaos_live import POOLS, is_ready
from tandem.benchmarks.robustness.dialled import DIALLED, Site, dialling_in

OLD, NEW = Process(1, 1), Process(2, 2)


class Api:
    """APIs of an application with devices by name, and of one that is connected or not."""

    def __init__(
        self, *devices: str, missing: tuple[str, ...] = (), connected: bool = True, verifiers: int = 2
    ) -> None:
        self.devices, self.missing, self.connected = list(devices), list(missing), connected
        self.pools = POOLS | {"verifier": verifiers}

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(self._reply))

    def _reply(self, request: httpx.Request) -> httpx.Response:
        replies: dict[str, Any] = {
            "/readyz": {
                "missing": self.missing,
                "gateway": "127.0.0.1:8443",
                "cloud": self.connected,
                **self.pools,
            },
            "/v1/devices": {"data": [{"name": name} for name in self.devices]},
            "/v1/keys": {"secret": "s3cret"},
        }
        return httpx.Response(200, json=replies[request.url.path])


@pytest.mark.parametrize(
    ("api", "now", "sign", "ready"),
    [
        (Api(DIALLED), [NEW], signal.SIGKILL, True),
        (Api(DIALLED), [OLD], signal.SIGKILL, False),
        (Api(DIALLED), [OLD], signal.SIGSTOP, True),
        (Api(DIALLED), [], signal.SIGKILL, False),
        (Api("laptop"), [NEW], signal.SIGKILL, False),
        (Api(DIALLED, connected=False), [NEW], signal.SIGKILL, False),
        (Api(DIALLED, missing=("laptop",)), [NEW], signal.SIGKILL, False),
        (Api(DIALLED, verifiers=1), [NEW], signal.SIGKILL, False),
    ],
)
async def test_everything_is_ready_with_the_device_that_dials_in(
    api: Api, now: list[Process], sign: signal.Signals, ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_live, "processes", lambda title: now)
    async with api.client() as http:
        assert await is_ready(Site(http, http), "a", [OLD], sign) == ready


PROGRAM = """
import pathlib, sys
runs = pathlib.Path(sys.argv[-1]).with_name("runs")
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
"""


async def test_the_devices_program_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialled, "PROGRAM", [sys.executable, "-c", PROGRAM])

    async def connected(site: Site) -> bool:
        return True

    monkeypatch.setattr(Site, "dialled_in", connected)
    async with Api(DIALLED).client() as http, dialling_in(http, tmp_path):
        config = yaml.safe_load((tmp_path / "device.yaml").read_text())
        assert config["connect"] == "127.0.0.1:8443"
        assert config["key"] == str(tmp_path / "device.key")
        assert (tmp_path / "device.key").read_text() == "s3cret"
        async with asyncio.timeout(60):
            while not (runs := tmp_path / "runs").exists() or len(runs.read_text()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
