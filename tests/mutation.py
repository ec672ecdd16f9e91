"""Mutation testing of a sample: does some test fail when one operator or number of the code is another?

    make mutants                                   # or, with cosmic-ray installed:
    python -m tests.mutation --count 100 --seed 7

Mutants are drawn from policies, modes, requests and the wire, and judged by the tests that mirror their folder. Some
survivors are equivalent to the original, so the bar is nine in ten.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Annotated

import typer
from rich.progress import track

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
TIMEOUT_S = 600.0
PICKED = "not slow and not nightly and not alone"


def mutants(file: Path) -> Iterator[tuple[str, str]]:
    """Yield (description, mutated code) of everything that can be changed in a file."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    code = file.read_text()
    for name in OPERATORS:
        occurrence = 0
        while (mutated := mutate_code(code, get_operator(f"core/{name}")(), occurrence)) is not None:
            yield f"{name} {occurrence}", mutated
            occurrence += 1


def tests_of(root: Path, module: Path) -> Path:
    """Return the tests that mirror a module's folder."""
    folder = Path("tests") / module.parent
    while not (root / folder).is_dir():
        folder = folder.parent
    return folder


def survives(root: Path, module: Path, mutated: str) -> bool:
    """Return whether the tests pass with the module's code replaced; it is put back."""
    original = (root / module).read_text()
    (root / module).write_text(mutated)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-xq",
        "-p",
        "no:cacheprovider",
        "-m",
        PICKED,
        tests_of(root, module),
    ]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, timeout=TIMEOUT_S, check=False)
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False  # it never ends: seen
    finally:
        (root / module).write_text(original)


def main(
    count: Annotated[int, typer.Option(help="Mutants to judge.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 0,
) -> None:
    """Judge a sample of mutants; fails if fewer than nine in ten are noticed."""
    here = Path(__file__).parents[1]
    random = Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tandem"
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", here, root], check=True)
        modules = [m.relative_to(root) for f in FOLDERS for m in (root / f).rglob("*.py") if m.stat().st_size]
        drawn = []
        while len(drawn) < count:  # of a folder, then a file, then a place in it: small folders count as much
            within = random.choice(FOLDERS)
            module = random.choice([m for m in modules if m.is_relative_to(within)])
            if found := list(mutants(root / module)):
                drawn.append((module, *random.choice(found)))
        survivors = [
            f"{module}: {what}"
            for module, what, mutated in track(drawn, "judging")
            if survives(root, module, mutated)
        ]
    print(*survivors, f"{count - len(survivors)} of {count} noticed", sep="\n")
    if len(survivors) > (1 - BAR) * count:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
