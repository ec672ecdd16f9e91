"""The modes' settings among an application's: each below its section's key, or among the application's own keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import cleandoc
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import create_model

from tandem.deployments.docstrings import meanings
from tandem.deployments.modes import MODES
from tandem.deployments.modes.base import Mode
from tandem.engine.config import Strict

S = TypeVar("S", bound=Strict)


def with_sections(
    modes: Iterable[type[Mode]], instead: Mapping[str, type[Strict]] = MappingProxyType({})
) -> Callable[[type[S]], type[S]]:
    """Class decorator: add the settings of these modes to an application's. instead: models of sections by key, where
    they are not the modes' own."""

    def add(model: type[S]) -> type[S]:
        fields: dict[str, Any] = {}
        told = cleandoc(model.__doc__ or "")
        for mode in modes:
            if mode.section:
                kind = instead.get(mode.section, mode.settings)
                fields[mode.section] = (kind, kind())
            else:
                fields |= {
                    key: (field.annotation, field) for key, field in mode.settings.model_fields.items()
                }
                told += "".join(f"\n{key}: {meaning}" for key, meaning in meanings(mode.settings).items())
        return create_model(
            model.__name__, __base__=model, __module__=model.__module__, __doc__=told, **fields
        )

    return add


def of_modes(said: Strict) -> dict[str, Strict]:
    """Each mode's settings, by its name, among an application's; modes whose settings are not there are left out."""
    found: dict[str, Strict] = {}
    for name, mode in MODES.items():
        if mode.section:
            if (settings := getattr(said, mode.section, None)) is not None:
                found[name] = settings
        elif mode.settings.model_fields.keys() <= type(said).model_fields.keys():
            found[name] = mode.settings.model_construct(
                **{key: getattr(said, key) for key in mode.settings.model_fields}
            )
    return found


def section(said: Strict, kind: type[S]) -> S:
    """The section of that kind among an application's settings."""
    return next(value for _, value in said if isinstance(value, kind))
