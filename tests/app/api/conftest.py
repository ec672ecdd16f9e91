"""Fixtures: a fresh backend for each test, and clients of its API over a socket."""

from collections.abc import AsyncIterator
from pathlib import Path
from ssl import PROTOCOL_TLS_CLIENT, SSLContext

import httpx
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.app.api.null_backend import NullBackend, Standing
from tests.servers import served

# The certificates that a client loads otherwise, for each test anew, take longer than most of them.
NO_CERTIFICATES = SSLContext(PROTOCOL_TLS_CLIENT)


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[NullBackend]:
    backend = NullBackend(ledger=tmp_path / "ledger.sqlite")
    await backend.treasury.open()
    yield backend
    await backend.treasury.close()


@pytest.fixture
async def address(backend: NullBackend, standing: tuple[Standing, FastAPI]) -> AsyncIterator[str]:
    place, api = standing
    place.backend = backend
    async with served(api) as address:
        yield address


@pytest.fixture
async def openai(address: str) -> AsyncIterator[AsyncOpenAI]:
    connections = DefaultAsyncHttpxClient(verify=NO_CERTIFICATES, timeout=20)
    async with AsyncOpenAI(
        base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=20, http_client=connections
    ) as client:
        yield client


@pytest.fixture
async def http(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=address, timeout=20, verify=NO_CERTIFICATES) as client:
        yield client
