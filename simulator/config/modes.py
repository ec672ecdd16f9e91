"""Modes in a configuration: their settings, and parameters of what is simulated of them."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from tandem.deployments.modes.sections import of_modes
from tandem.deployments.modes.sketch.settings import ExpandingModel, SketchSettings
from tandem.deployments.modes.split import SplitSettings
from tandem.engine.config import EngineConfig, Strict
from tandem.simulator.engines.sketch import SketchShape
from tandem.simulator.hardware import DrafterKind


class SplitConfig(SplitSettings):
    """Mode split: the policies of devices with the two ends of a split model, and parameters of the simulated ends.

    drafter: adapter, with a pass for every token; heads, with one pass for a whole draft; or none.
    sureness: s of the drafter's confidence, see `simulator.engines.guesses`; null: from the acceptance rate, that of
        the embedded pair unless `workload.acceptance` gives one.
    hidden: width of a hidden state; null: the model's.
    engine: memory and limits of a device's part.
    """

    drafter: DrafterKind = "adapter"
    sureness: float | None = Field(None, gt=0)
    hidden: int | None = Field(None, ge=1)
    engine: EngineConfig = EngineConfig()


class SketchConfig(SketchSettings):
    """Mode sketch: the application's settings, and parameters of the simulated sketches.

    models: of devices: "devices-0" is the first group's, "devices-0-1" the first of its `others`, and so on; empty:
        all expand.
    capability: of devices that `models` does not name.
    share: tokens of a sketch over those of its answer.
    sentence: tokens of a sentence of an answer.
    length_error: standard deviation of the logarithm of the length that the target predicts over the true one.
    asking: tokens of the instructions beside a question.
    doubted: share of the devices' sentences that the target doubts and writes itself, if there is time; of the embedded
        family's `small` 0.12.
    """

    models: dict[str, ExpandingModel] = Field(default_factory=dict)
    capability: float = Field(0.9, ge=0, le=1)
    share: float = Field(0.3, gt=0, lt=1)
    sentence: int = Field(20, ge=1)
    length_error: float = Field(0.1, ge=0)
    asking: int = Field(16, ge=0)
    doubted: float = Field(0.12, ge=0, le=1)

    def shape(self, seed: int) -> SketchShape:
        """The shape of all sketches."""
        return SketchShape(self.share, self.sentence, self.length_error, self.asking, seed, self.doubted)

    def settings(self, models: Iterable[str]) -> SketchSettings:
        """The application's settings for these models of devices."""
        known = ExpandingModel(capability=self.capability, least_share=self.share)
        return self.model_copy(update={"models": self.models or dict.fromkeys(models, known)})


SIMULATED: dict[str, type[Strict]] = {"split": SplitConfig, "sketch": SketchConfig}
"""Sections that have more than the mode's settings."""


def settings_of_modes(config: Strict, models: Iterable[str]) -> dict[str, Strict]:
    """Settings of the modes in a configuration, by mode. models: of devices."""
    return {
        mode: settings.settings(models) if isinstance(settings, SketchConfig) else settings
        for mode, settings in of_modes(config).items()
    }
