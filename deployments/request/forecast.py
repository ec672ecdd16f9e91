"""Forecasts: what the router expects of an answer, and why it chose its mode and device."""

from __future__ import annotations

from typing import NamedTuple

from tandem.policies.routing.collaboration import Reason
from tandem.policies.routing.objectives import Prediction

SHORT = 8
"""Fewest tokens of an answer whose time per token says something."""


class Compared(NamedTuple):
    """Comparison of a figure with its forecast.

    figure: name of the figure.
    ratio: what came, over what was expected.
    held: whether it lies in its 80 % interval.
    """

    figure: str
    ratio: float
    held: bool


class Forecast(NamedTuple):
    """Forecast of one answer.

    expected: what the answer should bring.
    formula: what the mode's formula says, before it is corrected by what came of other answers.
    kind: class of answers by which formulas are corrected, the widest part first.
    about: class of requests whose answers are taken to be as long.
    content: of the request.
    target: model of the target; "": none takes part.
    load: sessions of the target, with this one; of the device where no target takes part.
    prompt_tokens: tokens that the target takes in before it answers, those of others before it included.
    token_s: seconds that one of them takes it; 0 without a target.
    reason: why this way was chosen; None as long as it is not.
    """

    mode: str
    device: str | None
    expected: Prediction
    formula: Prediction
    kind: tuple[str, ...]
    about: str = ""
    content: str = ""
    target: str = ""
    load: int = 0
    prompt_tokens: int = 1
    token_s: float = 0.0
    reason: Reason | None = None

    def compared(self, ttft_s: float, tpot_s: float, tokens: int) -> list[Compared]:
        """Compare the times of an answer with this forecast, as far as it came. tokens: of the answer."""
        came = [("ttft_s", ttft_s, self.expected.ttft_s)] if ttft_s else []
        if tokens >= SHORT and tpot_s:
            came.append(("tpot_s", tpot_s, self.expected.tpot_s))
        return [
            Compared(name, value / expected.value, _within(value, expected.interval))
            for name, value, expected in came
            if expected.value > 0
        ]


class Change(NamedTuple):
    """Change of the way to answer, as another one was better.

    position: tokens of the answer before it.
    forecast: of the rest in the new way.
    """

    position: int
    forecast: Forecast


def _within(value: float, interval: tuple[float, float]) -> bool:
    return interval[0] <= value <= interval[1]
