"""`tandem config`: every setting of the application, from the code that reads it."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tandem.deployments.docstrings import meanings
from tandem.engine.config import PolicyChoice

UNITS = {
    "mbit_per_s": "megabits/s",
    "mb_per_s": "megabytes/s",
    "ms": "milliseconds",
    "s": "seconds",
    "bytes": "bytes",
}
"""Units, by the end of a setting's name."""


class Setting(NamedTuple):
    """A setting.

    key: dotted, [] for each item of a list, NAME for any name.
    allowed: its allowed values.
    unit: "" for a plain number, or none.
    default: "" if it must be given, or is listed elsewhere.
    """

    key: str
    meaning: str
    allowed: str
    unit: str
    default: str


def settings(
    model: type[BaseModel], prefix: str = "", told: dict[type[BaseModel], str] | None = None
) -> Iterator[Setting]:
    """Yield all settings, in order. told: types already listed, and where: these are not listed again.

    Raises KeyError for one whose meaning is missing in its class's docstring.
    """
    told = {} if told is None else told
    for name, field in model.model_fields.items():
        key, within = prefix + name, _models(field.annotation)
        if policies := [kind for kind in within if issubclass(kind, PolicyChoice)]:
            names = ", ".join(policies[0].family)
            yield Setting(key, meanings(model)[name], f"a policy: {names}", "", _default(field))
        elif within:
            many = "[]" if _is_list(field.annotation) else ""
            if typing.get_origin(field.annotation) is dict:
                many = ".NAME"
                yield Setting(key, meanings(model)[name], _allowed(field), "", _default(field))
            for kind in within:
                here = f"{key}{many}{_called(kind, within)}"
                if kind in told:
                    yield Setting(here, f"as {told[kind]}", "", "", "")
                    continue
                told[kind] = here
                yield from settings(kind, f"{here}.", told)
        else:
            meaning, unit = meanings(model)[name], _unit(name)
            yield Setting(key, meaning, _allowed(field), "" if unit in meaning else unit, _default(field))


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in a setting's type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _models(part)]


def _is_list(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (tuple, list)


def _called(kind: type[BaseModel], among: list[type[BaseModel]]) -> str:
    """Return which of several kinds, by its `kind`."""
    if len(among) == 1:
        return ""
    return "(" + ", ".join(typing.get_args(kind.model_fields["kind"].annotation)) + ")"


def _allowed(field: FieldInfo) -> str:
    what = _type(field.annotation)
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [
        f"{sign} {getattr(limit, name):g}"
        for limit in field.metadata
        for name, sign in signs.items()
        if getattr(limit, name, None) is not None
    ]
    return " ".join([what, *limits])


def _type(annotation: Any) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(str(part) for part in parts)
    if origin is typing.Annotated:
        return _type(parts[0])
    if origin in (typing.Union, types.UnionType):
        told = [_type(part) for part in parts if part is not types.NoneType]
        return " or ".join([*told, "null"] if types.NoneType in parts else told)
    if origin in (tuple, list):
        return "a list"
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true, false"}
    return names.get(annotation, "a path" if annotation.__name__ == "Path" else "a mapping")


def _unit(name: str) -> str:
    return next((unit for end, unit in UNITS.items() if name.endswith(f"_{end}")), "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, PolicyChoice):
        return value.name
    if value is None:
        return "null"
    if isinstance(value, (tuple, list, dict)):
        return ("{}" if isinstance(value, dict) else "[]") if not value else ", ".join(map(str, value))
    return (
        f"{value:g}"
        if isinstance(value, float)
        else str(value).lower()
        if value in (True, False)
        else str(value)
    )


def markdown(found: Iterator[Setting]) -> str:
    """Return all settings as a Markdown table."""
    lines = ["| setting | meaning | may be | default |", "|---|---|---|---|"]
    for setting in found:
        unit = f" ({setting.unit})" if setting.unit else ""
        default = f"`{setting.default}`" if setting.default else "must be given" * bool(setting.allowed)
        meaning = setting.meaning.removesuffix(".")
        cells = [f"`{setting.key}`", f"{meaning}{unit}", setting.allowed, default]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
