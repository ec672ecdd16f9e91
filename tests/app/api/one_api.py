"""One API for test after test, and clients of it: to make either anew takes longer than most tests."""

from __future__ import annotations

from functools import cache
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import Any

from fastapi import FastAPI
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tandem.app.api.routes import create_api
from tests.app.api.null_backend import NullBackend

NO_CERTIFICATES = SSLContext(PROTOCOL_TLS_CLIENT)
"""Stands in for the certificates that a client loads otherwise."""


class Standing:
    """A backend that stands for `backend`."""

    def __init__(self) -> None:
        self.backend = NullBackend()

    @property
    def streams(self) -> Any:
        return _Streams(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


class _Streams:
    """The copies of the backend that there is at the moment."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._standing.backend.streams, name)


@cache
def _standing(replica: int) -> tuple[Standing, FastAPI]:
    backend: Any = Standing()
    return backend, create_api(backend, backend, backend)


def api_of(backend: NullBackend, replica: int = 0) -> FastAPI:
    """Return a replica of the API, which answers from this backend until it is given another one."""
    standing, api = _standing(replica)
    standing.backend = backend
    return api


def openai_at(address: str) -> AsyncOpenAI:
    """Return OpenAI's client of a server."""
    connections = DefaultAsyncHttpxClient(verify=NO_CERTIFICATES, timeout=60)
    return AsyncOpenAI(
        base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60, http_client=connections
    )
