"""Knowledge that several modes' parts at the router share: targets' times under load, those of devices that do not tell
them, lengths of answers, and how often small models say what the target would."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

from tandem.deployments.learning.report import Report
from tandem.deployments.lru import LRUTable
from tandem.deployments.request.assignment import EndpointInfo
from tandem.policies.estimators.moving_average import MovingAverage
from tandem.policies.estimators.step_time import StepTimeModel
from tandem.policies.estimators.windows import Outputs
from tandem.policies.routing.objectives import Estimate

KEPT = 1024
"""Models that were not used for longest are forgotten first."""
FIRST_S, TOKEN_S = 0.3, 5e-4
"""Assumed time of an unknown target to its first token: of any prompt, and of each token."""
COLD, FEW = 3.0, 2
"""Ratio to the second answer's time to a first token from which on the first one was late because all was cold, and
number of answers from which on their times do not count as assumed."""
STEP_S, SESSION_S = 0.04, 1e-3
"""Assumed time of its later tokens: of any, and of each session beside it."""
PREFILL_S, DECODE_S = 0.005, 0.05
"""Assumed seconds per token of a device that does not tell its speed."""
ALIKE = 8.0
"""Answers to requests of one kind that count as much as those of all."""
LENGTHS_KEPT = 128
"""Lengths of answers of one kind that are kept."""
AGREES, AGREES_WEIGHT = 0.75, 4.0
"""Assumed share of a small model's tokens that are the target's, and the tokens for which that counts."""
READERS_KEPT = 64
"""Answers of a model whose readers' rates are kept."""
HURRIED = 0.8
"""Share of the time in which its reader reads a token from which on a step is as long for them: steps vary."""
AGREES_KEPT = 2048.0
"""Tokens over which that share is averaged."""


class FirstTimes(StepTimeModel):
    """Times to first tokens, by tokens of prompts. The very first one does not count any more when the second shows
    that it was late because engine or machine were cold."""

    __slots__ = ("_assumed", "_first_s")

    def __init__(self, base_s: float, token_s: float) -> None:
        super().__init__(base_s, token_s)
        self._assumed, self._first_s = (base_s, token_s), 0.0

    def note(self, tokens: int, seconds: float) -> None:
        if self.seen == 1 and self._first_s > COLD * seconds:
            super().__init__(*self._assumed)
        self._first_s = seconds
        super().note(tokens, seconds)

    @property
    def few(self) -> bool:
        """Whether they count as assumed, as there are so few."""
        return self.seen < FEW


class TargetTimes:
    """Times of one model's replicas.

    first: to the first token, by tokens of the prompt.
    step: of each later one, by sessions.
    rates: tokens/s of the latest answers' readers; 0 without one.
    """

    __slots__ = ("first", "rates", "step")

    def __init__(self) -> None:
        self.first, self.step = FirstTimes(FIRST_S, TOKEN_S), StepTimeModel(STEP_S, SESSION_S)
        self.rates: deque[float] = deque(maxlen=READERS_KEPT)

    def hurried(self, step_s: float) -> float:
        """Return the share of answers whose readers would wait if steps of that time took longer: those who read as
        fast as they are answered, and those who wait for the end; all before the first."""
        if not self.rates:
            return 1.0
        return sum(not rate or rate * step_s >= HURRIED for rate in self.rates) / len(self.rates)

    def first_token_s(self, endpoint: EndpointInfo, prompt_tokens: int) -> float:
        """Return the expected seconds to the first token of a target with an empty queue."""
        if not self.first.seen and endpoint.load.first_token_s:  # better than what is assumed
            return endpoint.load.first_token_s + endpoint.rtt_s
        return self.first.step_s(prompt_tokens)


class DeviceTimes:
    """Measured times of one device.

    first: to the first token, by tokens of the prompt.
    decode: seconds of each later one, alone.
    """

    __slots__ = ("decode", "first")

    def __init__(self) -> None:
        self.first, self.decode = FirstTimes(0.0, PREFILL_S), MovingAverage(DECODE_S)


class Agreement:
    """Share of a small model's tokens that the target would give, too.

    others: of a wider class, where this one begins; None: with what is assumed.
    assumed: share before anything is seen.
    """

    __slots__ = ("_accepted", "_assumed", "_judged", "_others")

    def __init__(self, others: Agreement | None = None, assumed: float = AGREES) -> None:
        self._accepted = self._judged = 0.0
        self._others, self._assumed = others, assumed

    @property
    def share(self) -> float:
        """Return the share."""
        first = self._assumed if self._others is None else self._others.share
        return (self._accepted + AGREES_WEIGHT * first) / (self._judged + AGREES_WEIGHT)

    @property
    def lost(self) -> Estimate:
        """Return the quality that answers of the small model lack: the share of its tokens that differ."""
        return Estimate(1.0 - self.share, doubt=(self._judged + AGREES_WEIGHT) ** -0.5)

    def note(self, accepted: int, judged: int) -> None:
        """Record the target's verdict on some tokens."""
        kept = 1.0 - min(1.0, judged / AGREES_KEPT)
        self._accepted, self._judged = kept * self._accepted + accepted, kept * self._judged + judged
        if self._others is not None:
            self._others.note(accepted, judged)


class Shared:
    """targets: by model.
    lengths: of whole answers.
    """

    def __init__(self) -> None:
        self.lengths = Outputs()
        self._targets: LRUTable[str, TargetTimes] = LRUTable(KEPT)
        self._devices: LRUTable[str, DeviceTimes] = LRUTable(KEPT)
        self._by_kind: LRUTable[str, Outputs] = LRUTable(KEPT)
        self._agreements: LRUTable[tuple[str, str], Agreement] = LRUTable(KEPT)
        self._all = Agreement()
        self._planned: object = None
        self._of_planned: dict[Hashable, Any] = {}

    def planned(self, wanted: object) -> dict[Hashable, Any]:
        """Return what is known of all ways to answer the request that is planned now, to add more; empty for another
        object."""
        if self._planned is not wanted:
            self._planned, self._of_planned = wanted, {}
        return self._of_planned

    def plan_anew(self) -> None:
        """Forget what is known of the request that is planned, as the fleet may have changed."""
        self._planned = None

    def target(self, model: str) -> TargetTimes:
        """Return the times of a model's replicas."""
        return self._targets.of(model, TargetTimes)

    def forget_target(self, model: str) -> None:
        """Forget a model's times: other replicas serve it now."""
        self._targets.pop(model, None)

    def device(self, name: str) -> DeviceTimes:
        """Return what was measured of a device, to note more."""
        return self._devices.of(name, DeviceTimes)

    def measured(self, name: str) -> DeviceTimes | None:
        """Return what was measured of a device; None where nothing was."""
        return self._devices.get(name)

    def remaining(self, kind: str, sent: int, most: int) -> float:
        """Return the expected further tokens of an answer of `sent` so far, to a request of a kind."""
        of_all = self.lengths.remaining(sent, most)
        known = self._by_kind.get(kind)
        if known is None:
            return of_all
        return (known.count * known.remaining(sent, most) + ALIKE * of_all) / (known.count + ALIKE)

    def agreement(self, model: str, content: str = "") -> Agreement:
        """Return how often a device's model says what the target would, in answers to requests of some content."""
        whole = self._agreements.of((model, ""), lambda: Agreement(self._all))
        return self._agreements.of((model, content), lambda: Agreement(whole)) if content else whole

    def learn(self, report: Report) -> None:
        """Learn from an answer, in whatever mode."""
        if (forecast := report.forecast) is not None and forecast.target:
            self.target(forecast.target).rates.append(forecast.expected.rate)
        if report.whole and report.counts:
            self.lengths.note(report.tokens)
            if forecast is not None:
                self._by_kind.of(forecast.about, lambda: Outputs(kept=LENGTHS_KEPT)).note(report.tokens)
