"""Wishes of a request in mode speculative: windows that can be asked for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tandem.deployments.modes.speculative.settings import SpeculativeOptions


@pytest.mark.parametrize("window", [None, 1, 64])
def test_windows_that_can_be_asked_for(window: int | None) -> None:
    assert SpeculativeOptions(window=window).window == window


@pytest.mark.parametrize("window", [0, -1, 65])
def test_windows_that_cannot(window: int) -> None:
    with pytest.raises(ValidationError):
        SpeculativeOptions(window=window)
