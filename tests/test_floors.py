"""The house's rules: imports point down, in no circle, with neither Ray nor torch where virtual time runs; folders
hold a dozen modules at most; and docstrings begin with a verb or a noun.

The floors are imported as `tandem.policies` and so on; here they go by their folders' names.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.xdist_group("floors")  # one process reads the tree

ROOT = Path(__file__).parents[1]
PACKAGE = "tandem."
"""Before the name of every floor."""

FLOORS = (
    "policies",
    "engine",
    "cluster",
    "deployments",
    "simulator",
    "app",
    "training",
    "benchmarks",
    "tests",
)
"""Packages from the lowest up. A module imports from its own floor and from those below."""

LIGHT = ("policies", "engine.core", "deployments.request", "deployments.modes", "simulator")
"""Packages that import neither of HEAVY, directly or through others of our modules."""
HEAVY = ("ray", "torch")
APART = ("simulator.engines.vllm", "simulator.engines.vllm_offload")
"""Modules of LIGHT that may: vLLM's scheduler and offloading, which bring torch, for simulations of vLLM alone."""
LATE = {("simulator/runs/tasks.py", "ray")}
"""Imports of HEAVY that a file of LIGHT may have, inside a function."""


class Import(NamedTuple):
    """One module that another imports.

    early: it is imported as soon as the other one is, rather than in a function or for the type checker alone.
    written: as the source has it.
    """

    line: int
    module: str
    early: bool
    written: str = ""


class Breach(NamedTuple):
    """A rule that a file breaks."""

    file: str
    line: int
    rule: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}"


@cache
def modules() -> dict[str, str]:
    """The file of each of our modules, relative to the root; the tests are left out: they may import anything."""
    files = (path.relative_to(ROOT) for floor in FLOORS[:-1] for path in sorted((ROOT / floor).rglob("*.py")))
    return {".".join(file.with_suffix("").parts).removesuffix(".__init__"): file.as_posix() for file in files}


def imports(source: str) -> Iterator[Import]:
    """Every import in a module's source, wherever it stands. Relative ones are refused: nobody here uses them."""

    def visit(node: ast.AST, early: bool) -> Iterator[Import]:
        match node:
            case ast.Import():
                yield from (
                    Import(node.lineno, name.name.removeprefix(PACKAGE), early, name.name)
                    for name in node.names
                )
            case ast.ImportFrom(module=str(base), level=0):
                for whole in (f"{base}.{name.name}" for name in node.names):
                    name = whole.removeprefix(PACKAGE)
                    found = name if name in modules() else base.removeprefix(PACKAGE)
                    yield Import(node.lineno, found, early, whole)
            case ast.ImportFrom():
                raise ValueError(f"line {node.lineno}: a relative import")
            case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
                for child in node.body:
                    yield from visit(child, False)
                for child in node.orelse:
                    yield from visit(child, early)
            case _:
                early = early and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                for child in ast.iter_child_nodes(node):
                    yield from visit(child, early)

    return visit(ast.parse(source), True)


@cache
def all_imports() -> dict[str, list[Import]]:
    """Return the imports of each of our modules."""
    return {
        name: list(imports((ROOT / file).read_text(encoding="utf-8"))) for name, file in modules().items()
    }


def around(module: str) -> list[str]:
    """The module and the packages around it: a, a.b and a.b.c for a.b.c."""
    parts = module.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def points_up(module: str, other: str) -> bool:
    """Whether `module` stands below `other`."""
    own, others = module.split(".")[0], other.split(".")[0]
    return others in FLOORS and FLOORS.index(others) > FLOORS.index(own)


@cache
def upward() -> list[Breach]:
    """Imports that point up."""
    return [
        Breach(modules()[name], found.line, f"may not import {found.module}: imports point down only")
        for name, all_found in all_imports().items()
        for found in all_found
        if points_up(name, found.module)
    ]


@cache
def bare() -> list[Breach]:
    """Imports of a floor by its folder's name: what is installed has no such package."""
    return [
        Breach(modules()[name], found.line, f"imports {found.written}, which is {PACKAGE}{found.written}")
        for name, all_found in all_imports().items()
        for found in all_found
        if found.written.split(".")[0] in FLOORS[:-1]
    ]


@cache
def heavy() -> list[Breach]:
    """Imports of Ray and torch in light packages, those inside functions and for the type checker among them."""
    return [
        Breach(modules()[name], found.line, f"{package} may not import {top}")
        for name, all_found in all_imports().items()
        for package in LIGHT
        if package in around(name) and name not in APART
        for found in all_found
        if (top := found.module.split(".")[0]) in HEAVY
        if found.early or (modules()[name], top) not in LATE
    ]


@cache
def circular() -> list[Breach]:
    """Modules that cannot be imported before themselves."""
    return [
        Breach(modules()[ring[0]], 1, f"is imported in a circle: {' → '.join(ring)}")
        for ring in circles(
            {
                name: {
                    package  # what surrounds this module too is being imported already
                    for found in all_found
                    if found.early and found.module in modules()
                    for package in around(found.module)
                    if package == found.module or package not in around(name)
                }
                for name, all_found in all_imports().items()
            }
        )
    ]


def folder(module: str) -> str:
    """Return the package in which a module stands; a package stands in itself."""
    return module if modules()[module].endswith("/__init__.py") else module.rpartition(".")[0]


@cache
def folder_circles() -> list[Breach]:
    """Folders of modules that import each other. A package that lists what stands below it does not count."""
    graph: dict[str, set[str]] = {folder(name): set() for name in modules()}
    for name, all_found in all_imports().items():
        others = {folder(found.module) for found in all_found if found.module in modules()}
        graph[folder(name)] |= {other for other in others - {folder(name)} if name not in around(other)}
    return [
        Breach(ring[0].replace(".", "/"), 1, f"is imported in a circle of folders: {' → '.join(ring)}")
        for ring in circles(graph)
    ]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Circles of a graph, each from its least name round to that name again; at least one if there are any."""
    found: dict[tuple[str, ...], None] = {}
    done: set[str] = set()

    def search(name: str, path: list[str]) -> None:
        if name in path:
            ring = path[path.index(name) :]
            least = ring.index(min(ring))
            found[(*ring[least:], *ring[:least], ring[least])] = None
        elif name not in done:
            for other in sorted(graph[name]):
                search(other, [*path, name])
            done.add(name)

    for name in sorted(graph):
        search(name, [])
    return [list(ring) for ring in found]


IMPORT_EACH = """
import importlib, json, sys

blocked, modules = json.loads(sys.argv[1])
for name in blocked:
    sys.modules[name] = None  # whoever imports it gets a ModuleNotFoundError
for name in modules:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(json.dumps([name.removeprefix("tandem."), error.name]))
"""


def unimportable(packages: tuple[str, ...]) -> list[Breach]:
    """Modules of `packages` that a fresh interpreter cannot import without Ray and torch."""
    names = [name for name in modules() if set(packages) & set(around(name)) and name not in APART]
    command = [sys.executable, "-c", IMPORT_EACH, json.dumps([HEAVY, [PACKAGE + name for name in names]])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    failures = [json.loads(line) for line in done.stdout.splitlines()]
    return [Breach(modules()[name], 1, f"cannot be imported without {missing}") for name, missing in failures]


@cache
def loading() -> list[Breach]:
    """Light modules that load Ray or torch, however indirectly."""
    return unimportable(LIGHT)


MOST_MODULES = 12
"""Modules in a folder, beside its packages, that one can still take in at a glance."""


@cache
def crowded() -> list[Breach]:
    """Folders of more than MOST_MODULES modules."""
    files = [file for file in modules().values() if not file.endswith("/__init__.py")]
    counts = Counter(str(Path(file).parent) for file in files)
    return [
        Breach(name, 1, f"holds {count} modules; {MOST_MODULES} at most")
        for name, count in counts.items()
        if count > MOST_MODULES
    ]


RIDDLE = re.compile(
    r"(All that|Anybody|As|By|How|In place|In which|It|Its|Like|No more|Nobody|Of|One more|So|Somebody|Such|That"
    r"|The same|There|These|They|Those|Through|To which|What|Whatever|When|Where|Which|Who|Whoever|Whom|Whose)\b"
)
"""First words after which a docstring does not say what a thing is, does or returns."""


def riddles(source: str, file: str = "") -> list[Breach]:
    """Return the docstrings of a source, those of attributes included, that begin with RIDDLE."""
    texts = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Expr))
    return [
        Breach(file, n.lineno, f"begins a docstring with {found[0]!r}; begin with a verb or a noun")
        for n in texts
        if isinstance(n.value, ast.Constant) and isinstance(n.value.value, str)
        if (found := RIDDLE.match(n.value.value.strip()))
    ]


@cache
def plain() -> list[Breach]:
    """Docstrings of the whole tree, tests included, that begin with a riddle."""
    files = (path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py")))
    return [
        breach for path in files for breach in riddles(path.read_text("utf-8"), str(path.relative_to(ROOT)))
    ]


RULES = (upward, bare, heavy, loading, circular, folder_circles, crowded, plain)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Callable[[], list[Breach]]) -> None:
    broken = [str(breach) for breach in rule()]
    assert not broken, "\n".join(["", *broken])


def test_late_imports_are_really_there() -> None:
    found = {
        (modules()[name], i.module)
        for name, all_found in all_imports().items()
        for i in all_found
        if not i.early
    }
    assert found >= LATE


def test_every_package_has_its_floor_and_is_installed_and_checked() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert packages == {*FLOORS, "tandem"}
    assert {path.name for path in (ROOT / "tandem").iterdir() if path.is_symlink()} == set(FLOORS[:-1])
    assert settings["setuptools"]["packages"]["find"]["include"] == ["tandem*"]
    assert settings["mypy"]["packages"] == ["tandem", "tests"]


def test_imports_are_found_wherever_they_stand() -> None:
    source = """
from typing import TYPE_CHECKING

import tandem.engine.base, ray.serve
from tandem.engine import base, nothing

if TYPE_CHECKING:
    import tandem.app.main
try:
    import tandem.deployments
except ImportError:
    def late():
        from tandem.app import settings
"""
    assert list(imports(source)) == [
        Import(2, "typing", True, "typing.TYPE_CHECKING"),
        Import(4, "engine.base", True, "tandem.engine.base"),
        Import(4, "ray.serve", True, "ray.serve"),
        Import(5, "engine.base", True, "tandem.engine.base"),
        Import(5, "engine", True, "tandem.engine.nothing"),
        Import(8, "app.main", False, "tandem.app.main"),
        Import(10, "deployments", True, "tandem.deployments"),
        Import(13, "app.settings", False, "tandem.app.settings"),
    ]


@pytest.mark.parametrize(
    ("module", "other", "up"),
    [
        ("policies.base", "engine.base", True),
        ("deployments.modes.race.mode", "simulator", True),
        ("benchmarks.engine", "tests.conftest", True),
        ("app.main", "policies.base", False),
        ("engine.base", "engine.text", False),
        ("policies.base", "numpy", False),
    ],
)
def test_up_is_where_a_higher_floor_is(module: str, other: str, up: bool) -> None:
    assert points_up(module, other) == up


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "d"}}) == [["b", "c", "b"], ["d", "d"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize(
    "source",
    [
        '"""Whoever reads this."""',
        'class Limit:\n    """It ends."""',
        'class Limit:\n    most = 1\n    """Of all sessions."""',
        'async def end():\n    """What ends."""',
        'if True:\n    def end():\n        """The same again."""',
    ],
)
def test_docstrings_that_begin_with_riddles_are_found(source: str) -> None:
    assert [breach.line for breach in riddles(source)] == [source.count("\n") + 1]


def test_plain_docstrings_are_not() -> None:
    source = (
        '"""Items of a list."""\ndef whole():\n    """Whether nothing is left. What else?"""\n    x = "Of it"'
    )
    assert riddles(source) == []


def test_what_needs_torch_cannot_be_imported_without() -> None:
    assert unimportable(("engine.torch.layers.linear",)) == [
        Breach("engine/torch/layers/linear.py", 1, "cannot be imported without torch")
    ]
