"""Modes' settings, as an application's settings have them."""

from __future__ import annotations

from tandem.deployments.modes import MODES
from tandem.deployments.modes.race.settings import RaceSettings
from tandem.deployments.modes.sections import of_modes, with_sections
from tandem.engine.config import Strict


def test_each_mode_has_its_section_or_its_keys_of_an_applications_settings() -> None:
    kind = with_sections([MODES["race"], MODES["speculative"]])(Strict)
    own = MODES["speculative"].settings
    said = kind.model_validate({"racing": {"dispatch": {"name": "device"}}})
    found = of_modes(said)
    assert found["race"] == RaceSettings.model_validate({"dispatch": {"name": "device"}})
    assert found["speculative"] == own()
    assert "split" not in found, "it has a section, which is not there"
    assert of_modes(own())["speculative"] == own(), "these are all of its keys"
