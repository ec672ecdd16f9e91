"""docs/compatibility.md: what each client's program can do in each mode.

make clients && .venv/bin/python -m tests.app.api.clients.compatibility [--real] [PROGRAM ...]

--real: on the real models, where they are.
PROGRAM: with_openai or another; by default all that have a table.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.app.api.clients.pairs import Pair, real_names, real_pair, scripted_pair
from tests.app.api.clients.run_programs import MODES, PROGRAMS, Line, run, serving_all

DOCUMENT = Path(__file__).parents[4] / "docs" / "compatibility.md"


class Tables(NamedTuple):
    """Tables of all programs with one pair of models.

    suffix: of their names in the document.
    modes: their columns.
    timeout_s: of a program.
    """

    pair: Callable[[], Pair]
    suffix: str
    modes: Sequence[str]
    timeout_s: float

    @property
    def programs(self) -> list[str]:
        """Return the programs that have a table."""
        document = DOCUMENT.read_text()
        return [program for program in PROGRAMS if f"<!-- {program}{self.suffix} -->" in document]

    async def lines(self, program: str) -> list[Line]:
        """Return what a program tells, with models that were asked nothing before."""
        with tempfile.TemporaryDirectory() as folder:
            async with serving_all(self.pair(), Path(folder), self.modes) as served:
                return await run(program, served, self.timeout_s)


SCRIPTED = Tables(scripted_pair, "", MODES, 300.0)
REAL = Tables(real_pair, " real", ("cloud", "device", "speculative"), 3000.0)


def section(lines: Sequence[Line]) -> str:
    """Return the table of one program: a row for each feature, a column for each mode."""
    modes = list(dict.fromkeys(line.mode for line in lines))
    outcomes = {(line.feature, line.mode): line.outcome for line in lines}
    header = f"| {lines[0].package} {lines[0].version} | {' | '.join(modes)} |"
    rows = [
        f"| {feature} | {' | '.join(outcomes[feature, mode] for mode in modes)} |"
        for feature in dict.fromkeys(line.feature for line in lines)
    ]
    return "\n".join([header, "|---" * (1 + len(modes)) + "|", *rows])


def recorded(name: str) -> str:
    """Return the part of the document that has that name."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", DOCUMENT.read_text(), re.DOTALL)
    assert found, f"docs/compatibility.md has no place for {name}"
    return found[1]


def record(name: str, text: str) -> None:
    """Write a part of the document."""
    begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
    before = DOCUMENT.read_text()
    DOCUMENT.write_text(before.replace(f"{begin}{recorded(name)}{end}", f"{begin}{text}{end}"))


async def main(tables: Tables, programs: Sequence[str]) -> None:
    """Run programs, and write what they told."""
    if tables is REAL:
        record("models", real_names())
    for program in programs:
        lines = await tables.lines(program)
        for line in lines:
            if line.outcome in ("fails", "refused"):
                print(program, line, flush=True)
        record(f"{program}{tables.suffix}", section(lines))


if __name__ == "__main__":
    chosen, named = REAL if "--real" in sys.argv else SCRIPTED, sys.argv[1:]
    asyncio.run(main(chosen, [word for word in named if word != "--real"] or chosen.programs))
