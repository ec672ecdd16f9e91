"""Fixtures of the documents' tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tandem import policies
from tandem.policies.routing.replica import routing
from tests.docs.documents import ROOT, fenced

ADDED = "two_choices"
"""The policy that docs/policies.md adds."""


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add its snippet as a module of the package `policies`, for the time of a test."""
    (code,) = fenced(ROOT / "docs" / "policies.md", "python")
    (tmp_path / f"{ADDED}.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(policies, "__path__", [*policies.__path__, str(tmp_path)])
    import_module(f"tandem.policies.{ADDED}")
    yield
    del routing._factories[ADDED], sys.modules[f"tandem.policies.{ADDED}"]
    delattr(policies, ADDED)
