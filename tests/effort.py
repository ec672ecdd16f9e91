"""Effort of tests: little in `make test`, everything in `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")


def tried(few: T, every: T) -> T:
    """Return `few` under the profile of `make test`, and `every` under any other one."""
    return few if settings.get_current_profile_name() == "few" else every


def slow_after(often: int, values: Iterable[Any]) -> list[Any]:
    """Return parameters of a test, of which all but the first `often` are slow. A tuple is one set of several."""
    sets = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*each, marks=() if n < often else pytest.mark.slow) for n, each in enumerate(sets)]
