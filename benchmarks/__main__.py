"""`tandem benchmark` lists the benchmarks, `tandem benchmark NAME [options]` runs one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from tandem.benchmarks import report
from tandem.benchmarks.catalogue import BENCHMARKS

DATA = "data"
"""Name of what is no benchmark: the public data of all."""


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark that the first argument names with the others, or list them all.

    Raises SystemExit for a name that there is not, and where public data are missing.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        report.table(
            "tandem benchmark NAME [options]; options: --help",
            ["name", "what it shows", "minutes"],
            [[name, one.line, f"{one.minutes:g}"] for name, one in BENCHMARKS.items()],
        )
        print(f"tandem benchmark {DATA} tells where the public data come from, and fetches them.")
        return
    name, *options = arguments
    if name == DATA:
        import_module("tandem.benchmarks.data.command").run(options)
        return
    if name not in BENCHMARKS:
        near = get_close_matches(name, BENCHMARKS, 1)
        raise SystemExit(
            f"there is no benchmark {name!r}; "
            + (f"{near[0]!r}?" if near else f"there are {', '.join(BENCHMARKS)}")
        )
    try:
        import_module(f"tandem.benchmarks.{BENCHMARKS[name].module}").main(options)
    except FileNotFoundError as error:
        paths = import_module("tandem.benchmarks.paths")
        if error.filename is None or not Path(error.filename).is_relative_to(paths.DATA):
            raise
        raise SystemExit(paths.NO_DATA) from None


def run(arguments: Sequence[str]) -> None:
    """Do so in a process whose SIGTERM meanwhile ends what a benchmark has started, too."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        main(arguments)
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    run(sys.argv[1:])
