"""A server with a null model, for the command line to ask."""

from typing import Any

import pytest
import ray.serve  # noqa: F401 - now: its logger keeps the stderr that it finds, and the command line's ends with a test
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI

from tandem.app.api.routes import create_api
from tests.app.api.null_backend import NullBackend, Standing
from tests.servers import served


@pytest.fixture(scope="session")
def standing() -> tuple[Standing, FastAPI]:
    """Return the API of all tests, and what stands for each one's backend."""
    backend: Any = Standing()
    return backend, create_api(backend, backend)


@pytest.fixture
def backend(tmp_path) -> NullBackend:
    return NullBackend(ledger=tmp_path / "ledger.sqlite")


@pytest.fixture
def url(backend, standing):
    place, api = standing
    place.backend = backend
    with start_blocking_portal() as portal:
        portal.call(backend.treasury.open)
        with portal.wrap_async_context_manager(served(api)) as address:
            yield address
        portal.call(backend.treasury.close)
