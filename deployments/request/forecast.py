"""Forecasts: what the router expects of an answer, and why it chose its mode and device."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.policies.routing.collaboration import Reason
from tandem.policies.routing.objectives import Prediction


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of one answer.

    expected: what the answer should bring.
    formula: what the mode's formula says, before it is corrected by what came of other answers.
    kind: class of answers by which formulas are corrected, the widest part first.
    target: model of the target; "": none takes part.
    load: sessions of the target, with this one.
    prompt_tokens: tokens to take in.
    reason: why this way was chosen; None as long as it is not.
    """

    mode: str
    device: str | None
    expected: Prediction
    formula: Prediction
    kind: tuple[str, ...]
    target: str = ""
    load: int = 0
    prompt_tokens: int = 1
    reason: Reason | None = None
