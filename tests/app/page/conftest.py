"""Fixtures: the API on a null backend, as its own tests have it."""

from tests.app.api.conftest import address, backend, http

__all__ = ["address", "backend", "http"]
