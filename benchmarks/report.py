"""Output of benchmarks: options, progress while they run, tables, and one JSON line at the end."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Column, Table

T = TypeVar("T")
FILE_WIDTH = 160  # characters, of what is written to a file


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser for the options of this benchmark. description: its module's docstring."""
    return argparse.ArgumentParser(
        prog=f"tandem benchmark {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def progress(items: Iterable[T], what: str) -> Iterable[T]:
    """The items, with a progress bar on stderr."""
    return track(items, what, console=Console(stderr=True), transient=True)


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{median(values):.4g} [{min(values):.4g} … {max(values):.4g}]"


def milliseconds(seconds: Sequence[float]) -> str:
    """Median and range of times in seconds, in milliseconds."""
    low, middle, high = (1e3 * value for value in (min(seconds), median(seconds), max(seconds)))
    return f"{middle:.2f} ms [{low:.2f} … {high:.2f}]"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; nothing in it is cut off."""
    grid = Table(*(Column(escape(name), overflow="fold") for name in columns), title=escape(title))
    for row in rows:
        grid.add_row(*map(escape, row))
    Console(width=None if sys.stdout.isatty() else FILE_WIDTH).print(grid)


def figures(benchmark: str, values: Mapping[str, float | bool | Sequence[float]]) -> None:
    """Print the figures as one JSON object, a benchmark's last line; null where one is no finite number."""
    known = {name: None if _endless(value) else value for name, value in values.items()}
    print(json.dumps({"benchmark": benchmark, "figures": known}, allow_nan=False), flush=True)


def _endless(value: float | bool | Sequence[float]) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
