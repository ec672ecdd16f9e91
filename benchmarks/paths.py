"""Paths of this tree, and of the public data that benchmarks read beside the hardware model's tables."""

from __future__ import annotations

from pathlib import Path

import tandem
from tandem.simulator.hardware.profiles import public_folder

ROOT = Path(tandem.__file__).resolve().parents[1]
"""Folder with the package `tandem`: the checkout, or where packages are installed."""
DATA = public_folder()
NO_DATA = (
    f"the public data are not in {DATA}: `tandem benchmark data --fetch` fetches them, or TANDEM_DATA names another "
    "folder"
)

MODELS = Path("~/.cache/tandem-models").expanduser()
"""Folder of real models."""
