"""Leakage: how much of a prompt its hidden states reveal, as attacks have measured it (leakage.json)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from tandem.engine.base import SplitInfo


class Measured(msgspec.Struct, frozen=True):
    """Measured leakage of a model.

    model: its name.
    source: of the measurement.
    recovered: share of prompts' tokens that were recovered, by the layers that the states had passed.
    """

    model: str
    source: str
    recovered: dict[int, float]


@cache
def measured() -> dict[str, Measured]:
    """Return the measured leakages, by the models' checksums."""
    text = Path(__file__).with_suffix(".json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Measured])


def recovery(split: SplitInfo) -> float:
    """Return the share of a prompt's tokens that an attacker with the model recovers from these states. Between
    measured depths it is that of the lower one, since more layers leak no more; without measurements, all of them."""
    known = measured().get(split.checksum)
    depths = [m for m in known.recovered if m <= split.first] if known else []
    return known.recovered[max(depths)] if known and depths else 1.0
