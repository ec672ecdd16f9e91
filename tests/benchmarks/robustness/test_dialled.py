"""A device that dials in, for benchmarks: its program is kept running."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from tandem.benchmarks.robustness import dialled
from tandem.benchmarks.robustness.dialled import Site, dialling_in

REPLIES = {"/readyz": {"gateway": "127.0.0.1:8443"}, "/v1/keys": {"secret": "s3cret"}}
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
    cloud = httpx.MockTransport(lambda request: httpx.Response(200, json=REPLIES[request.url.path]))
    async with (
        httpx.AsyncClient(base_url="http://cloud", transport=cloud) as http,
        dialling_in(http, tmp_path),
    ):
        config = yaml.safe_load((tmp_path / "device.yaml").read_text())
        assert config["connect"] == "127.0.0.1:8443"
        assert config["key"] == str(tmp_path / "device.key")
        assert (tmp_path / "device.key").read_text() == "s3cret"
        async with asyncio.timeout(60):
            while not (runs := tmp_path / "runs").exists() or len(runs.read_text()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
