"""The documents that people read, and what is quoted in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def text(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def name(value: object) -> str:
    """Return a document's name for the ids of tests; of other values, the first word."""
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value).split()[0]


def fenced(document: Path, language: str) -> list[str]:
    """Return its fenced blocks of a language; "" for those without."""
    return [block for kind, block in _FENCED.findall(text(document)) if kind == language]


def table(document: Path, heading: str) -> list[list[str]]:
    """Return the cells of each row of the table below a heading, without its head."""
    below = text(document).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in below.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def shell(document: Path) -> list[str]:
    """The lines of its indented blocks, which are what one types into a shell; continued ones as one."""
    lines: list[str] = []
    within = before = False
    for line in _FENCED.sub("", text(document)).splitlines():
        within = line.startswith("    ") and (within or not before)
        before = bool(line.strip())
        if within:
            lines.append(line.strip())
    return "\n".join(lines).replace("\\\n", "").splitlines()


def inline(document: Path, first: str) -> list[str]:
    """Return its inline quotes that begin with these words; quotes may go over two lines."""
    quotes = re.findall(r"`([^`]+)`", _FENCED.sub("", text(document)))
    return [" ".join(quote.split()) for quote in quotes if quote.startswith(first)]
