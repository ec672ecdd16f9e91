"""An earlier commit measured beside this tree, in alternation.

Changes of the machine's speed affect both alike. The sides are code that runs in processes of its own with
this interpreter, imports from its own tree, and prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.benchmarks import report
from tandem.benchmarks.paths import ROOT
from tandem.simulator.hardware.catalog import data_folder

BASE = "653c466"
"""The commit before the rebuild."""


class Failed(RuntimeError):
    """A side ended with an error; the message is its stderr."""


@dataclass(frozen=True, slots=True)
class Run:
    """One process.

    said: the JSON object of its last line.
    cpu_s: seconds of CPU, user's and system's, of the process and of those that it waited for.
    wall_s: seconds from its start to its end.
    """

    said: dict[str, Any]
    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Side:
    """code: what its processes run.
    tree: the folder whose packages they import.
    """

    code: str
    tree: Path = ROOT

    def run(self) -> Run:
        """Run the code once. Raises Failed."""
        environment = os.environ | {"PYTHONPATH": str(self.tree)}
        if data := data_folder():  # a tree elsewhere would not find it, and simulate something else
            environment["TANDEM_DATA"] = str(data)
        before, began = _children_s(), time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", self.code],
            cwd=self.tree,
            env=environment,
            capture_output=True,
            text=True,
        )
        wall_s, cpu_s = time.perf_counter() - began, _children_s() - before
        if done.returncode:
            raise Failed(f"{self.tree}:\n{done.stderr}")
        return Run(json.loads(done.stdout.splitlines()[-1]), cpu_s, wall_s)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def alternate(new: Side, old: Side | None, rounds: int, what: str) -> tuple[list[Run], list[Run]]:
    """(runs of the new side, runs of the old one), a pair a round, each side first in turn. Without an old side its
    list is empty. Raises Failed.
    """
    sides = [new] if old is None else [new, old]
    runs: tuple[list[Run], list[Run]] = ([], [])
    for turn in report.progress(range(rounds), what):
        order = range(len(sides))
        for side in order if turn % 2 else reversed(order):
            runs[side].append(sides[side].run())
    return runs


def ratios(new: list[Run], old: list[Run], figure: Callable[[Run], float]) -> list[float]:
    """The figure of each new run over that of the old one beside it."""
    return [figure(a) / figure(b) for a, b in zip(new, old, strict=True)]


def seconds(run: Run) -> float:
    """CPU time: other work on the machine hardly changes it."""
    return run.cpu_s


def add_option(parser: argparse.ArgumentParser, default: str = BASE) -> None:
    """Add --base, for `worktree`."""
    parser.add_argument(
        "--base",
        default=default,
        help=f'commit to compare with, "" for none (default {default or "none"})',
        metavar="COMMIT",
    )


def module(tree: Path, *names: str) -> str:
    """Return the first of these modules that a tree has: modules move. Raises LookupError."""
    for name in names:
        if (tree / name.replace(".", "/")).with_suffix(".py").exists():
            return name
    raise LookupError(f"{tree} has none of the modules {', '.join(names)}")


@contextmanager
def worktree(commit: str, repository: Path = ROOT) -> Iterator[Path | None]:
    """Yield a folder with the files of a commit; None without a commit, or, with a message, if the repository's
    history lacks it (a shallow clone), or there is none (an installed package)."""
    if not commit:
        yield None
        return
    git = ["git", "-C", str(repository)]
    exists = [*git, "cat-file", "-e", f"{commit}^{{commit}}"]
    if shutil.which("git") is None or subprocess.run(exists, capture_output=True).returncode:
        print(f"There is no history here with commit {commit}: only this tree is measured.", file=sys.stderr)
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="tandem-base-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(
            [*git, "worktree", "add", "--quiet", "--detach", str(tree), commit],
            check=True,
            capture_output=True,
        )
        try:
            yield tree
        finally:
            subprocess.run(
                [*git, "worktree", "remove", "--force", str(tree)], check=True, capture_output=True
            )
            subprocess.run([*git, "worktree", "prune"], check=True)
