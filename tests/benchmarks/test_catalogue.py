"""Every benchmark is listed by what it says of itself, and can be run by its name."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tandem.benchmarks.__main__ import main
from tandem.benchmarks.catalogue import BENCHMARKS, FOLDER
from tandem.benchmarks.paths import DATA


def _has_main(source: str) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in ast.parse(source).body)


def test_the_catalogue_has_exactly_the_modules_with_a_main() -> None:
    runnable = {
        ".".join(path.relative_to(FOLDER).with_suffix("").parts)
        for path in FOLDER.glob("*/*.py")
        if _has_main(path.read_text())
    }
    assert {one.module for one in BENCHMARKS.values()} == runnable
    assert len({one.module for one in BENCHMARKS.values()}) == len(BENCHMARKS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_says_what_it_shows_and_how_it_is_run(name: str) -> None:
    one = BENCHMARKS[name]
    source = (FOLDER / one.module.replace(".", "/")).with_suffix(".py").read_text()
    tree = ast.parse(source)
    assert (ast.get_docstring(tree) or "").splitlines()[0] == one.line
    assert one.line.endswith(".")
    assert one.minutes > 0
    literals = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert name in literals  # in `report.parser` and `report.figures`


def test_a_files_name_does_not_repeat_its_folder() -> None:
    repeated = [str(path) for path in FOLDER.glob("*/*.py") if path.parent.name in path.stem]
    assert repeated == []


def test_the_list_imports_no_benchmark() -> None:
    code = (
        "import sys; from tandem.benchmarks.__main__ import main; main([]);"
        "print(sorted({'torch', 'ray', 'transformers', 'simulator', 'app'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *listed, imported = done.stdout.splitlines()
    assert imported == "[]"
    for name, one in BENCHMARKS.items():
        assert any(f" {name} " in line for line in listed)
        assert one.line in done.stdout


def test_a_benchmark_gets_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulator", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: tandem benchmark simulator ")
    assert "--large-rounds" in said
    assert BENCHMARKS["simulator"].line in said


def test_missing_public_data_are_said_with_what_fetches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = [DATA / "prompts" / "a.jsonl", FOLDER / "nowhere"]

    def opens(_: list[str]) -> None:
        lacks.pop(0).open()

    monkeypatch.setattr("tandem.benchmarks.calibration.hardware.main", opens)
    with pytest.raises(SystemExit, match="tandem benchmark data --fetch"):
        main(["hardware"])
    with pytest.raises(FileNotFoundError):
        main(["hardware"])


def test_an_unknown_name_is_said_with_the_nearest() -> None:
    with pytest.raises(SystemExit, match="no benchmark 'simulater'; 'simulator'"):
        main(["simulater"])
    with pytest.raises(SystemExit, match="there are awc, "):
        main(["xyz"])
