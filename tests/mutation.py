"""Mutation testing of a sample: does some test fail when one operator or number of the code is another?

    make mutants                                   # or, with cosmic-ray installed:
    python -m tests.mutation --count 100 --seed 7

Mutants are drawn from policies, modes, requests and the wire. Each is judged by the tests of its module's name, then by
the others that mirror its folder, then by those elsewhere below the simulator that import the module, and by those of
the documentation, which has every setting's default. What needs Ray or is slow takes no part.

Not drawn, as no test ought to notice them: flags of `@dataclass`, stars of parameters and arguments, defaults in the
bodies of protocols, which nobody runs, and ±1 of a number of at least `LARGE` in a constant of a module or class or a
default of settings; the wire's format is no matter of taste.
Some of the others are equivalent to the original all the same, so the bar is nine in ten.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Annotated, NamedTuple

import typer

FOLDERS = ("policies", "deployments/modes", "deployments/request", "cluster/wire")
OPERATORS = (
    "AddNot", "NumberReplacer", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop",
    "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub", "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_Sub_Add", "ReplaceBinaryOperator_Mul_Div", "ReplaceBinaryOperator_Div_Mul",
    "ReplaceComparisonOperator_Lt_LtE", "ReplaceComparisonOperator_LtE_Lt", "ReplaceComparisonOperator_Gt_GtE",
    "ReplaceComparisonOperator_GtE_Gt", "ReplaceComparisonOperator_Eq_NotEq", "ReplaceComparisonOperator_Lt_Gt",
    "ReplaceComparisonOperator_Gt_Lt", "ReplaceComparisonOperator_Is_IsNot",
)  # fmt: skip
BAR = 0.9
LARGE = 8
TIMEOUT_S = 1800.0
"""Limit of a group of tests, each of which has pytest's own: a busy machine must not pass for a test that notices."""
PICKED = "not slow and not nightly and not alone and not xdist_group"
ABOVE = ("app", "simulator")
"""Tests that judge no mutants, as they take minutes."""
CONSTANT = re.compile("[(]?[A-Z0-9_, ]+[)]?")
FORMAT = Path("cluster/wire/frames.py")
SETTINGS = ("app/cli/test_config.py", "docs/test_policies.py")
"""Tests that compare settings and policies with their documentation."""


class Mutant(NamedTuple):
    """A changed file. line: number of the changed line; source: that line as changed; code: all of it."""

    module: Path
    operator: str
    line: int
    source: str
    code: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.operator}: {self.source}"


class Failure(NamedTuple):
    """A failure. test: by pytest's name; how: in brackets, unless it simply fails."""

    test: str
    how: str = ""

    def __str__(self) -> str:
        return self.test + self.how


class Verdict(NamedTuple):
    """Judgement of a mutant. by: the test that noticed it, or how many files did not."""

    noticed: bool
    by: str
    seconds: float


def places(code: str) -> list[tuple[str, int]]:
    """Return the changes that a file allows: operators, and for each the number of the place that it changes."""
    from cosmic_ray.ast import Visitor, get_ast
    from cosmic_ray.plugins import get_operator

    found: list[tuple[str, int]] = []

    class Counter(Visitor):
        def visit(self, node: object) -> object:
            for name, operator in operators.items():
                for _ in operator.mutation_positions(node):
                    found.append((name, numbers[name]))
                    numbers[name] += 1
            return node

    operators = {name: get_operator(f"core/{name}")() for name in OPERATORS}
    numbers = dict.fromkeys(OPERATORS, 0)
    Counter().walk(get_ast(code))
    return found


def mutant(root: Path, module: Path, random: Random) -> Mutant | None:
    """Draw a change of a file that a test ought to notice; None if it has none."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    code = (root / module).read_text()
    taste, found = list(_taste(ast.parse(code), module)), places(code)
    random.shuffle(found)
    for name, number in found:
        changed = mutate_code(code, get_operator(f"core/{name}")(), number)
        assert changed is not None
        before = code[: _first_difference(code, changed)]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n") - 1
        if name.startswith("ReplaceBinaryOperator_Mul") and _products(changed) >= _products(code):
            continue
        if not any(start <= (line, column) < end for start, end in taste):
            return Mutant(module, name, line, changed.splitlines()[line - 1].strip(), changed)
    return None


def _products(code: str) -> float:
    """Return the number of multiplications in a file; infinite if it does not parse: `*` was no operator then."""
    try:
        return sum(isinstance(node, ast.Mult) for node in ast.walk(ast.parse(code)))
    except SyntaxError:
        return inf


def _is_large(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value >= LARGE  # type: ignore[operator]


def _first_difference(one: str, other: str) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _taste(tree: ast.Module, module: Path) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield where a change is no fault, from (line, column) to the end."""
    left_out: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            left_out += [each for each in node.decorator_list if ast.unparse(each).startswith("dataclass(")]
            if any(ast.unparse(base).startswith("Protocol") for base in node.bases):
                left_out.append(node)
    values: list[ast.expr] = []
    for node in tree.body if module != FORMAT else ():
        if isinstance(node, ast.ClassDef) and node.name.endswith("Settings"):
            values += [each.value for each in node.body if isinstance(each, ast.AnnAssign) and each.value]
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        constants = [each for each in inside if isinstance(each, ast.Assign)]
        values += [each.value for each in constants if CONSTANT.fullmatch(ast.unparse(each.targets[0]))]
    left_out += [each for value in values for each in ast.walk(value) if _is_large(each)]
    for node in left_out:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        yield (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def tests_of(root: Path, module: Path) -> list[list[Path]]:
    """Return the test files that judge a module, the nearest first, in groups that are run one after the other."""
    tests = root / "tests"
    folder = tests / module.parent
    while not folder.is_dir():
        folder = folder.parent
    name = re.compile(rf"\b{re.escape('.'.join(('tandem', *module.with_suffix('').parts)))}\b")
    everywhere = sorted(tests.rglob("test_*.py"))
    importing = {each for each in everywhere if name.search(each.read_text())}
    mirrored = [each for each in everywhere if each.is_relative_to(folder)]
    nearest = [each for each in mirrored if each.stem == f"test_{module.stem}"]
    others = sorted(set(mirrored) - set(nearest), key=lambda each: (each not in importing, each))
    above = {tests / each for each in ABOVE}
    elsewhere = sorted(each for each in importing - set(mirrored) if above.isdisjoint(each.parents))
    elsewhere += [tests / each for each in SETTINGS if tests / each not in elsewhere]
    return [group for group in (nearest, others, elsewhere) if group]


def judge(root: Path, mutant: Mutant) -> Verdict:
    """Run the tests with the module's code replaced; it is put back, and the test that failed must then pass."""
    began_s, place = time.monotonic(), root / mutant.module
    groups = tests_of(root, mutant.module)
    original = place.read_text()
    place.write_text(mutant.code)
    try:
        failed = next(filter(None, (_failure(root, group) for group in groups)), None)
    finally:
        place.write_text(original)
    if failed is not None and (again := _failure(root, [failed.test])):
        raise RuntimeError(f"{again} fails without a mutant, too")
    by = str(failed or f"none of {sum(map(len, groups))} test files")
    return Verdict(failed is not None, by, time.monotonic() - began_s)


def _failure(root: Path, tests: Sequence[Path | str]) -> Failure | None:
    """Return the first of these tests that fails or never ends."""
    # A timeout ends the process: hypothesis takes one raised in a test for a failure, and looks for a smaller example.
    options = ["-xq", "-p", "no:cacheprovider", "--timeout-method=thread", "-m", PICKED]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Failure(str(tests[0]), " (never ends)")
    if done.returncode in (0, 5):  # 5: none of them was picked
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return Failure(found[1]) if found else Failure(str(tests[0]), " (not imported, or timed out)")


def drawn(root: Path, count: int, seed: int, only: str) -> list[Mutant]:
    """Draw mutants: of a folder, then a file, then a place in it, so that small folders count as much."""
    random, made = Random(seed), list[Mutant]()
    modules = [
        m.relative_to(root) for f in FOLDERS for m in sorted((root / f).rglob("*.py")) if m.stat().st_size
    ]
    modules = [m for m in modules if str(m).startswith(only)]
    folders = [f for f in FOLDERS if any(m.is_relative_to(f) for m in modules)]
    barren: set[Path] = set()
    while len(made) < count and len(barren) < len(modules):
        within = random.choice(folders)
        module = random.choice([m for m in modules if m.is_relative_to(within)])
        one = mutant(root, module, random)
        if one is None:
            barren.add(module)
        elif one not in made:
            made.append(one)
    return made


def main(
    count: Annotated[int, typer.Option(help="Mutants to judge.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 0,
    only: Annotated[str, typer.Option(help="Beginning of the paths to draw from.")] = "",
) -> None:
    """Judge a sample of mutants, a line each; fails if fewer than nine in ten are noticed."""
    here = Path(__file__).parents[1]
    survivors: list[Mutant] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tandem"
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", here, root], check=True)
        sample = drawn(root, count, seed, only)
        for each in sample:
            verdict = judge(root, each)
            said = "noticed " if verdict.noticed else "SURVIVED"
            print(f"{said} {each}  [{verdict.by}, {verdict.seconds:.0f} s]", flush=True)
            if not verdict.noticed:
                survivors.append(each)
    print(*survivors, f"{len(sample) - len(survivors)} of {len(sample)} noticed", sep="\n")
    if not sample or len(survivors) > (1 - BAR) * len(sample):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
