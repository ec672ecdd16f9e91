"""Paths of this tree, and of the public data that benchmarks read beside the hardware model's tables."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("TANDEM_DATA", ROOT.parent / "shared" / "data"))
NO_DATA = (
    "the public data is not here: `python -m benchmarks data --fetch` has it, or TANDEM_DATA names its folder"
)

MODELS = Path("~/.cache/tandem-models").expanduser()
"""Folder of real models."""
