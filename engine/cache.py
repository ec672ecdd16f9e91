"""The folder for what Tandem computed once and can compute again."""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    """Return the cache folder: $TANDEM_CACHE, or `tandem` in the user's. Raises RuntimeError if there is none."""
    if said := os.environ.get("TANDEM_CACHE"):
        return Path(said)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem"
