"""Outlook of mode sketch: what a sketched answer is expected to bring, from the plan that it would have."""

from __future__ import annotations

from typing import NamedTuple

from tandem.deployments.learning.shared import Agreement
from tandem.deployments.lru import LRUTable
from tandem.deployments.modes.sketch.opening import IDLE
from tandem.deployments.modes.sketch.questions import SketchTaught
from tandem.deployments.request.assignment import Prices
from tandem.policies.cost import PerToken
from tandem.policies.estimators.moving_average import MovingAverage
from tandem.policies.routing.objectives import Estimate, Prediction
from tandem.policies.sketch.sketch_length import SketchDecision, SketchState

NOTE = 0.2
"""Share of a sketch that its first note has, with the length before it."""
CONTENTS = 64
"""Contents of requests that are told apart."""


class Sketches:
    """Knowledge of the router about sketched answers.

    verified: share of the small models' sentences that the target judges, and writes anew where it doubts them.
    planned: share of answers in the mode that are sketched: others turn out to be short, or too late.
    """

    def __init__(self) -> None:
        self.verified, self.planned = MovingAverage(), MovingAverage()
        self.planned.note(1.0)
        self._kept: LRUTable[str, Agreement] = LRUTable(CONTENTS)

    def learn(self, taught: SketchTaught, content: str, capability: float) -> None:
        """Learn from a request's sentences. capability: of the small models, before any was judged."""
        if taught.sentences:
            self.verified.note(min(1.0, taught.verified / taught.sentences))
        if taught.verified:
            self._sentences(content, capability).note(taught.verified - taught.rewritten, taught.verified)

    def lost(self, content: str, capability: float) -> Estimate:
        """Return the quality that a sketched answer lacks: in sentences that the target doubts and does not see."""
        return self._sentences(content, capability).lost.times(1.0 - self.verified.value)

    def _sentences(self, content: str, capability: float) -> Agreement:
        return self._kept.of(content, lambda: Agreement(assumed=capability))


class Plan(NamedTuple):
    """Plan that a sketched answer would have.

    choice: of the sketch's length, with a model.
    state: that it rests on.
    queue: share of the target's places that others have.
    prompt: tokens of the prompt.
    device: joules per token of the device that expands.
    read_token_s: seconds in which it takes in a token; 0 if unknown.
    """

    choice: SketchDecision
    state: SketchState
    queue: float
    prompt: int
    device: PerToken
    read_token_s: float = 0.0


def mixed(sketched: Prediction, full: Prediction, share: float) -> Prediction:
    """Return what an answer is expected to bring that is sketched with a probability of `share`."""

    def mean(a: Estimate, b: Estimate) -> Estimate:
        return Estimate(share * a.value + (1.0 - share) * b.value, a.noise, a.doubt)

    if share >= 1.0:
        return sketched
    return Prediction(
        mean(sketched.ttft_s, full.ttft_s),
        mean(sketched.tpot_s, full.tpot_s),
        mean(sketched.usd, full.usd),
        mean(sketched.joules, full.joules),
        mean(sketched.lost, full.lost),
        sketched.leaves,
        sketched.tokens,
        sketched.rate,
        share * sketched.others_s + (1.0 - share) * full.others_s,
        sketched.informs,
        sketched.assumed,
    )


def outlook(full: Prediction, plan: Plan, prices: Prices, lost: Estimate) -> Prediction:
    """Return what a sketched answer is expected to bring. full: the same of the target's own."""
    sketch, latency_s = plan.choice.tokens, plan.choice.latency_s
    written_s = plan.state.llm_s(sketch)
    rest_s = latency_s - written_s
    # A device has read prompt and sketch before it writes the first sentence.
    wait_s = written_s + max(NOTE * rest_s, (plan.prompt + sketch) * plan.read_token_s)
    if plan.queue < IDLE:  # or the target does, which reads the prompt again, with the first note
        wait_s = min(wait_s, NOTE * written_s + full.ttft_s.value)
    joules = plan.device.of(plan.prompt + sketch, round(full.tokens))
    return full._replace(
        ttft_s=full.ttft_s._replace(value=full.ttft_s.value + wait_s),
        tpot_s=Estimate((1.0 - NOTE) * rest_s / max(1.0, full.tokens - 1.0)),
        usd=Estimate(prices.server.of(plan.prompt, sketch) + joules * prices.exchange_rate),
        joules=Estimate(joules),
        lost=lost,
        others_s=full.others_s * sketch / max(1.0, full.tokens),
        informs=0.0,
    )
