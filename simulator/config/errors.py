"""Configurations of earlier versions, and what took their keys' place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
