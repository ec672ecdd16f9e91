"""Loss: how often hidden states in a kind's numbers change a model's next token, as measured (loss.json)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from tandem.engine.base import SplitInfo
from tandem.engine.split.hidden_states import COMMON, Kind


class MeasuredLoss(msgspec.Struct, frozen=True):
    """Measured loss of a model.

    model: its name.
    source: of the measurement.
    kept: share of next tokens that stayed, by kind.
    """

    model: str
    source: str
    kept: dict[str, float]


@cache
def measured() -> dict[str, MeasuredLoss]:
    """Return the measured losses, by the models' checksums."""
    text = Path(__file__).with_suffix(".json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, MeasuredLoss])


def kept(split: SplitInfo, kind: Kind) -> float:
    """Return the share of next tokens that a kind keeps: 1 of kinds with 16 bits or more, 0 of others without a
    measurement."""
    if kind in ("float32", COMMON, "bfloat16"):
        return 1.0
    known = measured().get(split.checksum)
    return known.kept.get(kind, 0.0) if known else 0.0
