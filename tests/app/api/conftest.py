"""Fixtures: a fresh backend for each test, and clients of its API over a socket."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI

from tests.app.api.null_backend import NullBackend
from tests.app.api.one_api import NO_CERTIFICATES, api_of, openai_at
from tests.servers import served


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[NullBackend]:
    backend = NullBackend(ledger=tmp_path / "ledger.sqlite")
    await backend.treasury.open()
    yield backend
    await backend.treasury.close()


@pytest.fixture
async def address(backend: NullBackend) -> AsyncIterator[str]:
    async with served(api_of(backend)) as address:
        yield address


@pytest.fixture
async def openai(address: str) -> AsyncIterator[AsyncOpenAI]:
    async with openai_at(address) as client:
        yield client


@pytest.fixture
async def http(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=address, timeout=20, verify=NO_CERTIFICATES) as client:
        yield client
