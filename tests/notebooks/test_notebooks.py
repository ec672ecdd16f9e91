"""Every notebook runs from its first cell to its last, on small settings."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import tandem

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
SHORT = ("disco", "dsd")  # the others run at night
LIMIT_S = 900.0  # a notebook; the longest takes a minute on a machine that has little else to do


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem in SHORT else pytest.mark.nightly) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_it_runs_and_draws(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_NOTEBOOK", "small")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 4
    assert outputs[0]["text"].startswith("SMALL MODE proves ")
    assert "proves that the notebook runs, and nothing else" in notebook.cells[0].source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_needs_public_names_and_tools_alone(path: Path) -> None:
    """A notebook imports of Tandem only public names, benchmarks and training tools."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    imported = set[str]()
    for node in ast.walk(compile("\n".join(cells), str(path), "exec", flags)):
        match node:
            case ast.Import():
                imported |= {name.name for name in node.names}
            case ast.ImportFrom():
                imported |= {f"{node.module}.{name.name}" for name in node.names}
            case ast.Attribute(value=ast.Name(id="tandem")):
                imported.add(f"tandem.{node.attr}")
    ours = {name for name in imported if name.startswith("tandem.")}
    public = {f"tandem.{name}" for name in tandem.__all__}
    assert ours
    assert {n for n in ours - public if not n.startswith(("tandem.benchmarks.", "tandem.training."))} == set()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_committed_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert [cell.source for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
