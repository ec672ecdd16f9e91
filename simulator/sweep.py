"""Many simulations at once, as Ray tasks on as many cores as there are.

What is done is written down line by line, so that an interrupted sweep goes on where it stopped. A line is
known by the configuration it belongs to, whole: a changed one is simulated anew.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from simulator.config import Config, ConfigError, parse
from simulator.tasks import ray_map


class Point(msgspec.Struct, frozen=True):
    """One simulation of a sweep: what was set, and the summary that came out."""

    key: str
    settings: dict[str, Any]
    summary: dict[str, Any]


class Variant(NamedTuple):
    """A configuration, and what was set in it."""

    settings: dict[str, Any]
    config: Config


def grid(raw: Mapping[str, Any], vary: Sequence[str], origin: str = "configuration") -> list[Variant]:
    """Every combination of "dotted.key=value,value,…" over a raw configuration.

    Raises ConfigError before anything runs.
    """
    axes = []
    for axis in vary:
        key, equals, values = axis.partition("=")
        if not equals or not values:
            raise ConfigError(f"--vary wants key=value,value,…, not {axis!r}")
        axes.append([f"{key}={value}" for value in _split(values)])
    return [
        Variant(_settings(overrides), parse(raw, overrides, origin)) for overrides in itertools.product(*axes)
    ]


def sweep(variants: Sequence[Variant], out: Path | None = None) -> Iterator[Point]:
    """Simulate each, in any order; yields points as they are done, those found in `out` first.

    Uses the Ray that is running in this process, else one of its own for as long as it lasts.
    """
    variant_of = {_key(variant.config): variant for variant in variants}
    done = _done(out, variant_of)
    yield from done.values()
    left = [(key, variant.config) for key, variant in variant_of.items() if key not in done]
    if not left:
        return
    for key, summary in ray_map(_simulate, left):
        point = Point(key, variant_of[key].settings, summary)
        if out is not None:
            with out.open("ab") as file:
                file.write(msgspec.json.encode(point) + b"\n")
        yield point


def _simulate(item: tuple[str, Config]) -> tuple[str, dict[str, Any]]:
    from simulator.run import simulate

    key, config = item
    return key, simulate(config).summary()


def _key(config: Config) -> str:
    return hashlib.sha256(msgspec.json.encode(config.as_given(), order="deterministic")).hexdigest()[:24]


def _settings(overrides: Sequence[str]) -> dict[str, Any]:
    return {key: yaml.safe_load(value) for key, _, value in (each.partition("=") for each in overrides)}


def _split(values: str) -> list[str]:
    """Values between commas that are not inside brackets."""
    parts, depth = [""], 0
    for character in values:
        depth += (character in "[{") - (character in "]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _done(out: Path | None, keys: Container[str]) -> dict[str, Point]:
    """Points of earlier runs that belong to this sweep; a line cut off by an interruption counts for nothing."""
    points: dict[str, Point] = {}
    if out is None or not out.exists():
        return points
    whole = []
    for line in out.read_bytes().splitlines(keepends=True):
        try:
            point = msgspec.json.decode(line, type=Point)
        except msgspec.MsgspecError:
            continue
        whole.append(line if line.endswith(b"\n") else line + b"\n")
        if point.key in keys:
            points[point.key] = point
    out.write_bytes(b"".join(whole))
    return points
