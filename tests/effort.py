"""How much a test tries: little in `make test`, everything in `make test-all`."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")


def tried(few: T, every: T) -> T:
    """Return `few` under the profile of `make test`, and `every` under any other one."""
    return few if settings.get_current_profile_name() == "few" else every
