"""Errors of settings, in one line: the key, the complaint, and what is allowed."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import zip_longest
from typing import Any

from pydantic import BaseModel, ValidationError

SECRET = "token"
"""Suffix of keys whose values are not shown."""
UNKNOWN = "extra_forbidden", "unexpected_keyword_argument"
"""Types of pydantic's errors about unknown keys."""


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Return one error of raw data that is no `model`, with the key and what it allows: the first unknown key, since a
    key that is missing may be misspelt, or else the first error."""
    errors = error.errors()
    first = next((each for each in errors if each["type"] in UNKNOWN), errors[0])
    keys = [str(key) for key in first["loc"]]
    path = ".".join(_walk(model, keys)[0])
    if first["type"] in UNKNOWN:
        return no_such("key", path, _keys(_walk(model, keys[:-1])[1]))
    if first["type"] == "missing":
        return f"{path}: is missing (allowed: {', '.join(_keys(_walk(model, keys[:-1])[1]))})"
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    given = first["input"]
    if first["type"] == "literal_error":
        message = f"cannot be {given!r} (allowed: {first['ctx']['expected']})"
    elif path.endswith(SECRET):
        pass
    elif first["type"] != "value_error" and isinstance(given, (str, int, float, type(None))):
        message += f", not {given!r}"
    return f"{path}: {message}" if path else message


def no_such(what: str, path: str, allowed: Sequence[str]) -> str:
    """Return the error of a path whose last name is not allowed, with the nearest allowed name."""
    near = get_close_matches(path.rpartition(".")[2], allowed, 1)
    meant = f", did you mean {near[0]}?" if near else ""
    return f"{path}: no such {what}{meant} (allowed: {', '.join(allowed)})"


def _walk(model: Any, keys: Sequence[str]) -> tuple[list[str], Any]:
    """Return the keys as they are written, and the type of their value. Of several kinds, pydantic's keys name the one
    that it took."""
    path: list[str] = []
    named = False  # whether the key before chose the kind
    free = False  # whether this key is any name
    for key, kind in zip_longest(keys, keys[1:]):
        if not named:
            path.append(key)
        hints = typing.get_type_hints(model)
        if key in hints and not named and not free:
            model = hints[key]
        named = free = False
        while (arguments := typing.get_args(model)) and not isinstance(model, type):
            free = free or typing.get_origin(model) is dict
            models = [a for a in arguments if a is not types.NoneType][1 if free else 0 :]
            taken = next((a for a in models if _is_kind(a, kind)), None)
            named, model = taken is not None, taken or models[0]
        if typing.get_origin(model) is tuple:
            model = typing.get_args(model)[0]
    return path, model


def _keys(model: Any) -> list[str]:
    if isinstance(model, type) and issubclass(model, BaseModel):
        return list(model.model_fields)
    return [field.name for field in dataclasses.fields(model)]


def _is_kind(model: Any, kind: str | None) -> bool:
    fields = getattr(model, "model_fields", {})
    return "kind" in fields and kind in typing.get_args(fields["kind"].annotation)
