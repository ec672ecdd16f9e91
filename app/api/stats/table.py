"""Table of `tandem.stats` in docs/api.md: `python -m tandem.app.api.stats.table` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tandem.app.api.stats.stats import Stats

DOCS = Path(__file__).resolve().parents[3] / "docs" / "api.md"
_TABLE = re.compile(r"(?<=<!-- stats -->\n).*?(?=<!-- /stats -->)", re.DOTALL)


def rows(
    schema: dict[str, Any], definitions: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Yield (key, type, meaning) of each property in a JSON schema, dotted, with those of the objects in it."""
    for name, found in schema["properties"].items():
        kinds = [_resolved(kind, definitions) for kind in found.get("anyOf", [found])]
        meaning = found.get("description") or kinds[0]["description"]
        yield (
            prefix + name,
            " or ".join(_type(kind) for kind in kinds),
            meaning[0].upper() + meaning[1:].removesuffix("."),
        )
        for kind in kinds:
            if "properties" in kind:
                yield from rows(kind, definitions, f"{prefix}{name}.")
            elif "items" in kind:
                yield from rows(_resolved(kind["items"], definitions), definitions, f"{prefix}{name}[].")


def _resolved(kind: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    return definitions[kind["$ref"].rpartition("/")[2]] if "$ref" in kind else kind


def _type(kind: dict[str, Any]) -> str:
    if kind["type"] == "array":
        return "list of objects"
    of = kind.get("additionalProperties")
    return f"object of {of['type']}s" if isinstance(of, dict) else str(kind["type"])


def markdown() -> str:
    """Return the table."""
    schema = Stats.model_json_schema(mode="serialization")
    lines = ["| key | type | meaning |", "|---|---|---|"]
    lines += [f"| `{key}` | {kind} | {meaning} |" for key, kind, meaning in rows(schema, schema["$defs"])]
    return "\n".join(lines) + "\n"


def updated(page: str) -> str:
    """Return the page with the table between its two marks."""
    return _TABLE.sub(lambda _: markdown(), page)


if __name__ == "__main__":
    DOCS.write_text(updated(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
