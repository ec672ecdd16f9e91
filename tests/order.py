"""Files and folders named for a run are taken in the tree's order, in whatever order they are named.

pytest 9.1 loses a folder's fixtures where a file of a folder above is named between its own (pytest-dev/pytest#14964).
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.args.sort(key=lambda named: Path(named.partition("::")[0]).parts)
