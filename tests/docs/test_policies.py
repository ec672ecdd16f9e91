"""docs/policies.md: its snippet runs as it stands, and its table names the policies that there are."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import policies
from deployments.settings import RouterSettings
from policies.base import Registry
from policies.routing import routing

TEXT = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
(SNIPPET,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
NAME = "two_choices"


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The snippet as a module of the package `policies`, for the time of a test."""
    (tmp_path / f"{NAME}.py").write_text(SNIPPET, encoding="utf-8")
    monkeypatch.setattr(policies, "__path__", [*policies.__path__, str(tmp_path)])
    import_module(f"policies.{NAME}")
    yield
    del routing._factories[NAME], sys.modules[f"policies.{NAME}"]
    delattr(policies, NAME)


@pytest.mark.usefixtures("added")
def test_the_snippet_is_a_policy() -> None:
    chosen = RouterSettings.model_validate({"routing": {"name": NAME, "parameters": {"seed": 7}}})
    policy = chosen.routing.create(routing)
    assert policy.choose([3]) == 0
    drawn = [policy.choose([9, 1, 5]) for _ in range(200)]
    assert set(drawn) == {1, 2}, "never the busiest"


@pytest.mark.parametrize("row", re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", TEXT, re.MULTILINE))
def test_the_table_names_every_policy(row: tuple[str, str]) -> None:
    family, names = row
    registry = getattr(import_module(f"policies.{family}"), family)
    assert isinstance(registry, Registry)
    assert re.findall(r"`([\w-]+)`", names) == list(registry)
