"""Effort of tests: little in `make test`, all parameters in `make test-all`, all else in `make test-nightly`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")


def tried(few: T, every: T) -> T:
    """Return `few`, or `every` under the profile of `make test-nightly`."""
    return few if settings.get_current_profile_name() == "few" else every


def slow_after(often: int, values: Iterable[Any]) -> list[Any]:
    """Return parameters of a test, of which all but the first `often` are slow. A tuple is one set of several."""
    sets = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*each, marks=() if n < often else pytest.mark.slow) for n, each in enumerate(sets)]
