"""Fixtures: a fresh backend for each test, and clients of its API over a socket."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI

from tandem.app.api.routes import create_api
from tests.app.api.null_backend import NullBackend, served


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[NullBackend]:
    backend = NullBackend(ledger=tmp_path / "ledger.sqlite")
    await backend.treasury.open()
    yield backend
    await backend.treasury.close()


@pytest.fixture
async def address(backend: NullBackend) -> AsyncIterator[str]:
    async with served(create_api(backend, backend)) as address:
        yield address


@pytest.fixture
async def openai(address: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture
async def http(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=address, timeout=20) as client:
        yield client
