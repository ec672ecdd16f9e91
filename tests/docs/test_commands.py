"""Every command in the documents is one that there is, with options that it has."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Collection
from contextlib import redirect_stdout, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from ray.scripts.scripts import cli as ray

from tandem.__main__ import cli
from tandem.app.api.completions.schema import ChatRequest
from tandem.app.api.routes import create_api
from tandem.benchmarks.__main__ import DATA
from tandem.benchmarks.catalogue import BENCHMARKS
from tests.app.api.null_backend import NullBackend
from tests.docs.documents import DOCUMENTS, ROOT, inline, name, shell, text

EXAMPLE = ROOT / "simulator" / "examples" / "pool.yaml"


def arguments(line: str) -> list[str]:
    """Return a documented command's arguments: without comment, with a file in place of FILE."""
    line = re.sub(r"\[(--.*?)\]", r"\1", line).replace(" …", "")
    return shlex.split(re.sub(r"FILE(\.yaml)?", str(EXAMPLE), line), comments=True)


def check_tandem(words: list[str]) -> None:
    """Raises KeyError for a command that there is not, an error of usage for options that it has not.

    A command that is only named needs none. One that passes its words on has those options that its help names.
    """
    command: Any = typer.main.get_command(cli)
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        command = command.commands[words[0]]
        words = words[1:]
    if not words:
        return
    if command.name == "benchmark":
        check_benchmark(words)
    elif command.context_settings.get("ignore_unknown_options"):
        check_passed_on(command.name, words, PARTS.get(command.name, ()))
    else:
        with suppress(typer.Exit):  # after --version and -h
            command.make_context(command.name, words)


PARTS = {"adapter": ("evaluate", "answers")}
"""Commands of commands that pass their words on."""


def check_benchmark(words: list[str]) -> None:
    assert words[0] in {*BENCHMARKS, DATA, "NAME"}
    if words[0] != "NAME":
        check_passed_on("benchmark", words, words[:1])


def check_passed_on(command: str, words: list[str], parts: Collection[str]) -> None:
    """Options that the command's help names, or that of the part of it which the first word is.

    Without options it is not asked for, as it takes the import of that part.
    """
    if options := {word for word in words if word.startswith("--")}:
        assert options <= options_of(command, words[0] if words[0] in parts else "")


@cache
def options_of(command: str, part: str) -> set[str]:
    """Return the options that a command's help names."""
    found: Any = typer.main.get_command(cli).commands[command]  # type: ignore[attr-defined]
    words = [part, "--help"] if part else ["--help"]
    with redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit) as left:
        found.invoke(found.make_context(command, words))
    assert left.value.code == 0
    assert said.getvalue().startswith(" ".join(["usage: tandem", command, *words[:-1]]))
    return set(re.findall(r"--[\w-]+", said.getvalue()))


def check_python(words: list[str]) -> None:
    """`-m` a module that there is."""
    if words[0] != "-m":
        assert words[0] == "-c"
        compile(words[1], "-c", "exec")
        return
    _, module, *rest = words
    assert find_spec(module) is not None, module
    if module == "benchmarks" and rest:
        check_benchmark(rest)


def check_curl(words: list[str]) -> None:
    """A request that the API takes."""
    url = next(word for word in words if word.startswith("http"))
    assert words[words.index("-H") + 1] == "Content-Type: application/json"
    path = re.sub(r"^https?://[^/]+", "", url)
    assert "post" in create_api(backend := NullBackend(), backend).openapi()["paths"][path]
    ChatRequest.model_validate_json(words[words.index("-d") + 1])


def check(line: str) -> None:
    """Raises for a line of a shell that would fail, and for one of a kind that nobody checks."""
    program, *words = arguments(line)
    program = program.removeprefix(".venv/bin/")
    match program:
        case "tandem":
            check_tandem(words)
        case "python":
            check_python(words)
        case "curl":
            check_curl(words)
        case "make":
            targets = re.findall(r"^([\w-]+):", text(ROOT / "Makefile"), re.MULTILINE)
            assert {word for word in words if not word.startswith(("TORCH=", "MODEL=", "DRAFTER="))} <= set(
                targets
            )
        case "pytest" | "pip" | "jupyter":
            assert all((ROOT / word).exists() for word in words if "/" in word and not word.startswith("--"))
        case "serve":
            assert words[0] == "status" or (ROOT / words[1]).exists()
        case "ray":
            ray.commands[words[0]].make_context(words[0], words[1:])
        case ".":
            assert words == [".venv/bin/activate"]
        case "export":
            assert not words or all("=" in word for word in words)
        case _:
            pytest.fail(f"nobody checks {program}")


@pytest.mark.timeout(300)  # imports what it asks for help
@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_command_is_one(document: Path) -> None:
    lines = [
        line for line in shell(document) if not line.startswith("of_up()")
    ]  # tests/app/cli/server/test_up.py
    quoted = [
        line
        for first in ("tandem ", "python -m ", "make ", "serve deploy ", "jupyter ")
        for line in inline(document, first)
    ]
    quoted += [line for line in inline(document, ".venv/bin/") if " " in line]
    for line in [*lines, *quoted]:
        try:
            check(line)
        except Exception as error:
            pytest.fail(f"{line}: {error!r}")


@pytest.mark.parametrize(
    "line",
    [
        "tandem sing",
        "tandem chat Hello --loud",
        "tandem keys lose key-1",
        "tandem sweep FILE.yaml",
        "tandem benchmark oracle",
        "tandem benchmark chaos --see 3",
        "tandem split target --layer 2",
        "tandem adapter evaluate --steps 3",
        "python -m tandem.training.nothing",
        "make love",
        "pytest tests/nowhere",
        "serve deploy app/nothing.yaml",
        "ray start --hed",
        "curl http://127.0.0.1:8000/v1/chat -H 'Content-Type: application/json' -d '{}'",
        "rm -rf /",
    ],
)
def test_one_that_is_not_is_found(line: str) -> None:
    with pytest.raises((Exception, pytest.fail.Exception)):
        check(line)


@pytest.mark.parametrize(
    "file", [*DOCUMENTS, ROOT / "Makefile", ROOT / "engine" / "vllm" / "__init__.py"], ids=name
)
def test_nothing_installs_a_package_of_our_name_from_the_index(file: Path) -> None:
    """Tandem is not published: what the index has as `tandem` is somebody else's."""
    assert not re.findall(r"pip install [^\n]*\btandem\b(?!-)", file.read_text(encoding="utf-8"))
