"""Modes' settings, as an application's settings have them."""

from __future__ import annotations

from tandem.deployments.modes import MODES
from tandem.deployments.modes.race.settings import RaceSettings
from tandem.deployments.modes.sections import of_modes, options_of, with_options, with_sections
from tandem.deployments.modes.sketch.settings import SketchOptions
from tandem.deployments.modes.speculative.settings import SpeculativeOptions
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


def test_a_requests_options_are_those_of_each_mode_that_has_some_there() -> None:
    asked = with_options([MODES["speculative"], MODES["sketch"]])(Strict).model_validate({"window": 3})
    kinds = {type(each) for each in options_of(asked)}
    assert kinds == {SpeculativeOptions, SketchOptions}
    assert SpeculativeOptions(window=3) in options_of(asked)
    assert options_of(SpeculativeOptions(window=3)) == (SpeculativeOptions(window=3),), "these are all there"
    assert options_of(Strict()) == ()


def test_fields_are_told_after_those_of_the_model() -> None:
    class Mine(Strict):
        """Settings of these tests."""

    told = with_options([MODES["speculative"]])(Mine).__doc__ or ""
    assert told.startswith("Settings of these tests.\nwindow: ")
