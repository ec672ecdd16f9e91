"""What is wrong with a configuration, in one line: file, key, complaint, and what is allowed."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

_SERVERS = ("targets", "auto_topology.target_mix")
_DEVICES = ("devices", "auto_topology.device_mix", "drafters", "auto_topology.drafter_mix")
_LINKS = ("auto_topology.link", *(f"{group}.link" for group in _DEVICES))
RENAMED: Mapping[str, str] = {
    "policies.window": "window",
    "policies.routing": "router.routing",
    "policies.batching": "engine.batching",
    "policies.scheduling": "engine.scheduling",
    "policies.dispatch": "racing.dispatch",
    "policies.migration": "racing.migration",
    "policies": "window, router, racing, engine.batching and engine.scheduling",
    "race.latency": "engine.latency",
    "race": "racing",
    **{f"{link}.up_mbps": "up_mbit_per_s" for link in _LINKS},
    **{f"{link}.down_mbps": "down_mbit_per_s" for link in _LINKS},
    **{
        f"{group}.{old}": new
        for group in _SERVERS
        for old, new in {
            "max_sessions": "engine.max_sessions",
            "token_budget": "engine.token_budget",
            "kv_tokens": "engine.kv_blocks (blocks of engine.block_size tokens)",
            "host.tokens": "engine.host_memory.blocks (blocks of engine.block_size tokens)",
            "host.copy_gb_per_s": "engine.host_memory.copy_mb_per_s",
            "host.copy_tokens_per_s": "engine.host_memory.copy_mb_per_s, with kv_bytes of a token",
            "host.write_through": "engine.host_memory.write_through",
            "host.overlap": "engine.host_memory.overlap",
            "host": "engine.host_memory",
            "first_apart": "nothing: the simulated engine takes prompts in as the live one does",
        }.items()
    },
    "drafters": "devices",
    "auto_topology.drafters": "auto_topology.devices",
    "auto_topology.drafter_mix": "auto_topology.device_mix",
}
"""Keys of earlier configurations, without the indices of lists, by what says the same now."""


class ConfigError(ValueError):
    """A configuration that cannot be simulated; the message names the file, the key and what is allowed."""


def renamed(raw: Any) -> str | None:
    """A complaint about the first key of an earlier configuration, the deepest where they are nested; None for none."""
    for keys in _paths(raw):
        new = RENAMED.get(".".join(key for key in keys if not key.isdigit()))
        if new is not None:
            return f"{'.'.join(keys)}: this key is now {new}"
    return None


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first complaint about raw data that is no `model`."""
    first = error.errors()[0]
    keys = [str(key) for key in first["loc"]]
    path = ".".join(keys)
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        allowed = _keys(_at(model, keys[:-1]))
        near = get_close_matches(keys[-1], allowed, 1)
        meant = f", did you mean {near[0]}?" if near else ""
        return f"{path}: no such key{meant} (allowed: {', '.join(allowed)})"
    if first["type"] == "missing":
        return f"{path}: is missing (allowed: {', '.join(_keys(_at(model, keys[:-1])))})"
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    given = first["input"]
    if first["type"] == "literal_error":
        message = f"cannot be {given!r} (allowed: {first['ctx']['expected']})"
    elif first["type"] != "value_error" and isinstance(given, (str, int, float, type(None))):
        message += f", not {given!r}"
    return f"{path}: {message}" if path else message


def _paths(raw: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The keys of nested data from the top, those within before those around them."""
    if isinstance(raw, Mapping):
        items = [(str(key), value) for key, value in raw.items()]
    elif isinstance(raw, Sequence) and not isinstance(raw, str):
        items = [(str(index), value) for index, value in enumerate(raw)]
    else:
        return
    for key, value in items:
        yield from _paths(value, (*above, key))
        yield (*above, key)


def _at(model: Any, keys: Sequence[str]) -> Any:
    """The type of what lies below these keys."""
    for key in keys:
        hints = typing.get_type_hints(model)
        if key in hints:
            model = hints[key]
        while (arguments := typing.get_args(model)) and not isinstance(model, type):
            model = next(a for a in arguments if a is not types.NoneType)
        if typing.get_origin(model) is tuple:
            model = typing.get_args(model)[0]
    return model


def _keys(model: Any) -> list[str]:
    if isinstance(model, type) and issubclass(model, BaseModel):
        return list(model.model_fields)
    return [field.name for field in dataclasses.fields(model)]
