"""Settings and request options of mode speculative."""

from __future__ import annotations

from pydantic import Field

from tandem.engine.config import PolicyChoice, Strict
from tandem.policies.speculation.rounds import FUSED_WINDOW
from tandem.policies.speculation.window import WindowPolicy, window


class WindowChoice(PolicyChoice[WindowPolicy]):
    """A window policy."""

    family = window


class SpeculativeSettings(Strict):
    """Speculative rounds.

    window: policy that chooses γ, the tokens drafted in a round.
    fused_window: γ of rounds that stay in the cloud.
    """

    window: WindowChoice = WindowChoice(name="awc")
    fused_window: int = Field(FUSED_WINDOW, ge=0)


class SpeculativeOptions(Strict):
    """Wishes of a request.

    window: tokens drafted per round.
    """

    window: int | None = Field(default=None, ge=1, le=64)
