"""Every notebook runs from its first cell to its last, on small settings."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
LIMIT_S = 300.0  # a notebook; the longest takes a minute on a machine that has little else to do


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_draws(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_NOTEBOOK", "small")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 4
    assert outputs[0]["text"].startswith("SMALL MODE proves ")
    assert "proves that the notebook runs, and nothing else" in notebook.cells[0].source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_committed_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert [cell.source for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
