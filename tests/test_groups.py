"""Tests of one group run in one process, so that there is one Ray, and one vLLM."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("together")
def test_groups_are_kept_together(request: pytest.FixtureRequest) -> None:
    """pytest-xdist 3.8 does not do it with pytest 9.2, and says nothing (pytest-dev/pytest-xdist#1386)."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@together")
    else:
        pytest.skip("nothing is distributed")
