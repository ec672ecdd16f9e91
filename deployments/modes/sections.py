"""Modes' settings among an application's, each below its section's key or among the application's own keys, and modes'
options among a request's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import cleandoc
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, create_model

from tandem.deployments.docstrings import meanings
from tandem.deployments.modes import MODES
from tandem.deployments.modes.base import Mode
from tandem.engine.config import Strict

S = TypeVar("S", bound=Strict)
M = TypeVar("M", bound=BaseModel)


def with_sections(
    modes: Iterable[type[Mode]], instead: Mapping[str, type[Strict]] = MappingProxyType({})
) -> Callable[[type[S]], type[S]]:
    """Class decorator: add the settings of these modes to an application's. instead: models of sections by key, where
    they are not the modes' own."""

    def add(model: type[S]) -> type[S]:
        sections, rest = {}, []
        for mode in modes:
            if mode.section:
                kind = instead.get(mode.section, mode.settings)
                sections[mode.section] = (kind, kind())
            else:
                rest.append(mode.settings)
        return _with_fields(model, rest, sections)

    return add


def with_options(modes: Iterable[type[Mode]]) -> Callable[[type[M]], type[M]]:
    """Class decorator: add the options of these modes to a request's."""
    return lambda model: _with_fields(model, [mode.options for mode in modes])


def _with_fields(
    model: type[M], others: Iterable[type[Strict]], more: Mapping[str, Any] = MappingProxyType({})
) -> type[M]:
    """Return the model with the fields of others, and more fields, as `create_model` takes them."""
    fields, told = dict(more), cleandoc(model.__doc__ or "")
    for other in others:
        fields |= {key: (field.annotation, field) for key, field in other.model_fields.items()}
        told += "".join(f"\n{key}: {meaning}" for key, meaning in meanings(other).items())
    return create_model(model.__name__, __base__=model, __module__=model.__module__, __doc__=told, **fields)


def of_modes(said: Strict) -> dict[str, Strict]:
    """Return the settings of each mode, by its name, from an application's; modes without any are left out."""
    found: dict[str, Strict] = {}
    for name, mode in MODES.items():
        if mode.section:
            if (settings := getattr(said, mode.section, None)) is not None:
                found[name] = settings
        elif mode.settings.model_fields.keys() <= type(said).model_fields.keys():
            found[name] = _of(mode.settings, said)
    return found


def options_of(asked: BaseModel) -> tuple[Strict, ...]:
    """Return the options of each mode among a request's; modes without options there are left out."""
    kinds = (mode.options for mode in MODES.values() if mode.options.model_fields)
    return tuple(
        _of(kind, asked) for kind in kinds if kind.model_fields.keys() <= type(asked).model_fields.keys()
    )


def _of(kind: type[Strict], said: BaseModel) -> Strict:
    """Return an object of that kind, whose fields are among the model's and were validated with it."""
    return kind.model_construct(**{key: getattr(said, key) for key in kind.model_fields})


def section(said: Strict, kind: type[S]) -> S:
    """Return the section of that kind from an application's settings."""
    return next(value for _, value in said if isinstance(value, kind))
