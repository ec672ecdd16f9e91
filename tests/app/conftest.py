"""A server with a null model, for the command line to ask."""

import pytest
import ray.serve  # noqa: F401 - now: its logger keeps the stderr that it finds, and the command line's ends with a test
from anyio.from_thread import start_blocking_portal

from tandem.app.api.routes import create_api
from tests.app.api.null_backend import NullBackend, served


@pytest.fixture
def backend(tmp_path) -> NullBackend:
    return NullBackend(ledger=tmp_path / "ledger.sqlite")


@pytest.fixture
def url(backend):
    with start_blocking_portal() as portal:
        portal.call(backend.treasury.open)
        with portal.wrap_async_context_manager(served(create_api(backend, backend))) as address:
            yield address
        portal.call(backend.treasury.close)
