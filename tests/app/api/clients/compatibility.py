"""docs/compatibility.md: what each client's program can do in each mode.

make clients && .venv/bin/python -m tests.app.api.clients.compatibility
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.app.api.clients.run_programs import MODES, PROGRAMS, Line, run, serving_all

DOCUMENT = Path(__file__).parents[4] / "docs" / "compatibility.md"


def section(lines: Sequence[Line]) -> str:
    """Return the table of one program: a row for each feature, a column for each mode."""
    outcomes = {(line.feature, line.mode): line.outcome for line in lines}
    features = list(dict.fromkeys(line.feature for line in lines))
    header = f"| {lines[0].package} {lines[0].version} | {' | '.join(MODES)} |"
    rows = [
        f"| {feature} | {' | '.join(outcomes.get((feature, mode), '') for mode in MODES)} |"
        for feature in features
    ]
    return "\n".join([header, "|---" * (1 + len(MODES)) + "|", *rows])


def recorded(program: str) -> str:
    """Return the program's table in the document."""
    found = re.search(rf"<!-- {program} -->\n(.*?)\n<!-- /{program} -->", DOCUMENT.read_text(), re.DOTALL)
    assert found, f"docs/compatibility.md has no place for {program}"
    return found[1]


def record(program: str, table: str) -> None:
    """Write the program's table into the document."""
    begin, end = f"<!-- {program} -->\n", f"\n<!-- /{program} -->"
    before = DOCUMENT.read_text()
    DOCUMENT.write_text(before.replace(f"{begin}{recorded(program)}{end}", f"{begin}{table}{end}"))


async def main() -> None:
    """Run all programs, and write what they told."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving_all(Path(folder)) as served:
            for program in PROGRAMS:
                lines = await run(program, served)
                for line in lines:
                    if line.outcome in ("fails", "refused"):
                        print(program, line)
                record(program, section(lines))


if __name__ == "__main__":
    asyncio.run(main())
