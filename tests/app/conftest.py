"""A server with a null model, for the command line to ask."""

import pytest
import ray.serve  # noqa: F401 - now: its logger keeps the stderr that it finds, and the command line's ends with a test
from anyio.from_thread import start_blocking_portal

from tests.app.api.null_backend import NullBackend
from tests.app.api.one_api import api_of
from tests.servers import served


@pytest.fixture
def backend(tmp_path) -> NullBackend:
    return NullBackend(ledger=tmp_path / "ledger.sqlite")


@pytest.fixture
def url(backend):
    with start_blocking_portal() as portal:
        portal.call(backend.treasury.open)
        with portal.wrap_async_context_manager(served(api_of(backend))) as address:
            yield address
        portal.call(backend.treasury.close)
