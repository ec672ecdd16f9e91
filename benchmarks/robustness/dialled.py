"""A device that dials in: its program, in a process of its own beside the application."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tandem.app.cli.server.local_ray import free_port
from tandem.benchmarks.application import TANDEM

PROGRAM = [*TANDEM, "device"]
DIALLED = "phone"
"""Name of the device."""
READY_S = 120.0
"""Longest until everything is ready."""
LOOK_S = 0.2
"""Interval of looking whether it is."""


@dataclass(frozen=True)
class Site:
    """APIs of the application, and of the device that dials in."""

    cloud: httpx.AsyncClient
    device: httpx.AsyncClient

    async def dialled_in(self) -> bool:
        """Return whether the device's program is connected, and the application lists it. Raises httpx.HTTPError."""
        if not (await self.device.get("/readyz", timeout=5.0)).json().get("cloud"):
            return False
        listed = (await self.cloud.get("/v1/devices", timeout=5.0)).raise_for_status().json()["data"]
        return any(device["name"] == DIALLED for device in listed)


@asynccontextmanager
async def dialling_in(http: httpx.AsyncClient, folder: Path, **settings: Any) -> AsyncIterator[Site]:
    """Keep the program of a device running, which dials the application's gateway; enter when it is connected.
    settings: further ones of the program."""
    listen = f"127.0.0.1:{free_port()}"
    made = (await http.post("/v1/keys", json={"name": DIALLED, "role": "device"})).raise_for_status().json()
    gateway = (await http.get("/readyz")).raise_for_status().json()["gateway"]
    (folder / "device.key").write_text(made["secret"])
    config = {"connect": gateway, "key": str(folder / "device.key"), "listen": listen} | settings
    (folder / "device.yaml").write_text(yaml.safe_dump(config))

    async def keep() -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                *PROGRAM, "--config", str(folder / "device.yaml"), stdout=sys.stderr
            )
            try:
                await process.wait()
            finally:
                if process.returncode is None:
                    process.terminate()
                    await process.wait()

    keeping = asyncio.create_task(keep())
    try:
        async with httpx.AsyncClient(base_url=f"http://{listen}") as device:
            site = Site(http, device)
            async with asyncio.timeout(READY_S):
                while not await _connected(site):  # noqa: ASYNC110 (nobody tells)
                    await asyncio.sleep(LOOK_S)
            yield site
    finally:
        keeping.cancel()
        await asyncio.wait((keeping,))


async def _connected(site: Site) -> bool:
    with suppress(httpx.HTTPError):
        return await site.dialled_in()
    return False
