"""`python -m benchmarks` lists the benchmarks, `python -m benchmarks NAME [options]` runs one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from tandem.benchmarks import report
from tandem.benchmarks.catalogue import BENCHMARKS

DATA = "data"
"""Name of what is no benchmark: the public data of all."""


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark that the first argument names with the others, or list them all."""
    if not arguments or arguments[0] in ("-h", "--help"):
        report.table(
            "python -m benchmarks NAME [options]; options: --help",
            ["name", "what it shows", "minutes"],
            [[name, one.line, f"{one.minutes:g}"] for name, one in BENCHMARKS.items()],
        )
        print(f"python -m benchmarks {DATA} tells where the public data come from, and fetches them.")
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
    import_module(f"tandem.benchmarks.{BENCHMARKS[name].module}").main(options)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # ends what was started, too
    main(sys.argv[1:])
