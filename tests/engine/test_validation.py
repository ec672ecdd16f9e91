"""Checks of requests. The contract of engines has those of ids, prompts and windows."""

from __future__ import annotations

import pytest

from tandem.engine.base import NoCapacity
from tandem.engine.validation import check_room


def test_no_session_is_opened_beyond_the_most() -> None:
    check_room(1, 2)
    with pytest.raises(NoCapacity, match="2 sessions are open"):
        check_room(2, 2)
