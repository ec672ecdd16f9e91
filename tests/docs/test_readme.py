"""The README is short, names the papers, and shows what `tandem up` prints."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from tandem.app.cli.server.up import CONFIG, explain, read, tries
from tandem.deployments.modes import MODES
from tests.docs.documents import ROOT, text

README = text(ROOT / "README.md")


def test_it_has_at_most_100_lines() -> None:
    assert len(README.splitlines()) <= 100


@pytest.mark.parametrize("paper", ["DSD", "DiSCo", "TokenFlow", "HAT", "PICE"])
def test_it_names_the_papers(paper: str) -> None:
    assert f"**{paper}**" in README


@pytest.mark.parametrize("mode", MODES)
def test_it_names_the_modes(mode: str) -> None:
    assert f"| `{mode}` |" in README


def test_it_shows_what_tandem_up_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run from a clean clone, where `make up` has made `.venv`."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "executable", str(ROOT / ".venv" / "bin" / "python"))
    plan = read(CONFIG)
    shown = "".join(f"    {line}\n" for line in tries(plan))
    assert shown in README
    console = Console(file=io.StringIO(), width=80)
    explain(console, plan, 1.0)
    assert shown in console.file.getvalue()  # type: ignore[attr-defined]
