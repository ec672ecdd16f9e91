"""Meanings of a class's fields, from its docstring: a line `name: meaning` for each, continued by indented lines."""

from __future__ import annotations

import re
from functools import cache
from inspect import cleandoc
from typing import Any

_MEANING = re.compile(r"^(\w+(?:, \w+)*): (.*)$")


@cache
def meanings(described: type) -> dict[str, str]:
    """Meaning of each field that the docstring of the class, or of one of its bases, describes."""
    found: dict[str, str] = {}
    for base in reversed(described.__mro__):
        names: list[str] = []
        for line in cleandoc(base.__doc__ or "").splitlines():
            if match := _MEANING.match(line):
                names = match[1].split(", ")
                found |= dict.fromkeys(names, match[2])
            elif names and line.startswith("    "):
                found |= {name: f"{found[name]} {line.strip()}" for name in names}
            else:
                names = []
    return found


def describe(schema: dict[str, Any], described: type) -> None:
    """Move the meanings from the class's description in a JSON schema to its properties; a `json_schema_extra`."""
    if described.__doc__:
        schema["description"] = cleandoc(described.__doc__).partition("\n")[0]
    for name, meaning in meanings(described).items():
        if name in schema["properties"]:
            schema["properties"][name]["description"] = meaning
