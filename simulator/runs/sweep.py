"""Sweep: many simulations at once, as Ray tasks on all cores.

An interrupted sweep resumes where it stopped. A line of its file is identified by its whole configuration: a changed
one is simulated anew.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from tandem.simulator.config.config import Config, parse
from tandem.simulator.config.errors import ConfigError
from tandem.simulator.runs.tasks import resumable_map


class Point(msgspec.Struct, frozen=True):
    """One simulation of a sweep: its settings and its summary."""

    key: str
    settings: dict[str, Any]
    summary: dict[str, Any]


class Variant(NamedTuple):
    """A configuration, and the settings varied in it."""

    settings: dict[str, Any]
    config: Config

    @property
    def key(self) -> str:
        """Key of its point."""
        document = msgspec.json.encode(self.config.as_given(), order="deterministic")
        return hashlib.sha256(document).hexdigest()[:24]


def grid(
    raw: Mapping[str, Any], vary: Sequence[str], origin: str = "configuration", fixed: Sequence[str] = ()
) -> list[Variant]:
    """Every combination of "dotted.key=value,value,…" over a raw configuration. fixed: "dotted.key=value" of all.

    Raises ConfigError before anything runs.
    """
    axes = []
    for axis in vary:
        key, equals, values = axis.partition("=")
        if not equals or not values:
            raise ConfigError(f"--vary wants key=value,value,…, not {axis!r}")
        axes.append([f"{key}={value}" for value in _split(values)])
    return [
        Variant(_settings(overrides), parse(raw, [*fixed, *overrides], origin))
        for overrides in itertools.product(*axes)
    ]


def sweep(variants: Sequence[Variant], out: Path | None = None) -> Iterator[Point]:
    """Simulate each variant, in any order; yield points as they complete, those found in `out` first.

    Uses the Ray that is running in this process, else starts one for its duration. Raises ForeignFile if `out` is a
    file of another kind.
    """
    by_key = {variant.key: variant for variant in variants}
    return resumable_map(_simulate, by_key, lambda point: point.key, Point, out, chunk=1)


def _simulate(variant: Variant) -> Point:
    from tandem.simulator.runs.run import simulate

    return Point(variant.key, variant.settings, simulate(variant.config).summary())


def _settings(overrides: Sequence[str]) -> dict[str, Any]:
    return {key: yaml.safe_load(value) for key, _, value in (each.partition("=") for each in overrides)}


def _split(values: str) -> list[str]:
    """Split at commas that are not inside brackets."""
    parts, depth = [""], 0
    for character in values:
        depth += (character in "[{") - (character in "]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts
