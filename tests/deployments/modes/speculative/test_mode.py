"""Figures of mode speculative that are reckoned from others."""

from __future__ import annotations

import pytest

from tandem.deployments.modes.speculative.mode import Speculation


def test_acceptance_is_of_what_was_drafted() -> None:
    assert Speculation(rounds=3, drafted=12, accepted=9).acceptance == pytest.approx(0.75)
    assert Speculation().acceptance is None
