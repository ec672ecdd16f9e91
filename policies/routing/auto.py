"""Mode and device by what each way to answer is expected to bring: the policy `auto`.

The way of the least expected loss is taken. Of ways about which little is known a better one may be among those that
seem worse: now and then, Thompson sampling draws each way's figures from what is known of them, and the best of the
draw is taken; an answer that tells of a small model's quality, on which other ways depend, is worth more by what is in
doubt of it. What that is expected to cost is bounded by a share of all losses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from tandem.policies.routing.collaboration import (
    Collaboration,
    CollaborationState,
    DeviceView,
    ExplicitElseCloud,
    NothingAllowed,
    NothingUp,
    Preference,
    Reason,
    collaboration,
)
from tandem.policies.routing.objectives import OBJECTIVES, Candidate, Objective, Prediction, Ranking, ranked

TYPICAL_IN, TYPICAL_OUT = 128, 128
"""Tokens of an answer by which devices are compared before a request comes."""
UNKNOWN_S = 0.1
"""Seconds a token of a device that does not tell its speed: it comes after those that do."""
LASTS = 10.0
"""Requests for which it is worth knowing a small model's quality."""
OFTEN = 0.25
"""Share of requests for which the ways' figures are drawn."""
SAVED = 20.0
"""Mean losses' worth of exploration that may be saved up."""


@collaboration.register("auto")
class ByPrediction(ExplicitElseCloud):
    """Chooses mode and device of the least expected loss among those that wishes leave open; otherwise as `explicit`.

    objective: of requests without one: balanced, fast, cheap or private.
    explore: share of all expected losses that may be spent on trying what does not seem the best; 0: nothing is tried.
    change: least share of the rest's expected loss that another way must save for an answer to change to it on its way;
        1: no answer changes.
    seed: of the random numbers.
    """

    def __init__(
        self, objective: str = "balanced", explore: float = 0.02, change: float = 0.25, seed: int = 0
    ) -> None:
        if objective not in OBJECTIVES:
            raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, not {objective!r}")
        if not 0 <= explore <= 1:
            raise ValueError(f"explore must lie between 0 and 1, not {explore}")
        if not 0 <= change <= 1:
            raise ValueError(f"change must lie between 0 and 1, not {change}")
        self._objective, self._explore, self._random = OBJECTIVES[objective], explore, Random(seed)
        self._change = change
        self._saved_usd = self._mean_usd = 0.0

    def preference(self, device: DeviceView) -> Preference:
        prefill_s, decode_s = device.prefill_token_s or UNKNOWN_S, device.decode_token_s or UNKNOWN_S
        alone_s = TYPICAL_IN * prefill_s + TYPICAL_OUT * decode_s + device.rtt_s
        return (device.full, (1 + device.sessions) * alone_s, device.name)

    def choose(self, state: CollaborationState) -> Collaboration:
        objective, missed = state.objective or self._objective, False
        candidates, losses = state.candidates(objective)
        if not candidates:
            if objective.limited:
                raise NothingUp("no endpoint is up that is known to keep the request's limits")
            return super().choose(replace(state, objective=None))
        ranking = ranked(losses)
        if ranking is None:  # nothing is so quick: the quickest way within the other limits
            missed, patient = True, replace(objective, ttft_s=math.inf, second_usd=1e3)
            ranking = ranked([patient.limited_loss(each.expected) for each in candidates])
        if ranking is None:
            raise NothingAllowed("no mode keeps the request's limits of cost, quality and privacy")
        chosen = ranking.best if missed else self._tried(candidates, ranking, objective)
        second = ranking.second if chosen == ranking.best else ranking.best
        way = candidates[chosen]
        if missed:
            losses = [objective.loss(each.expected) for each in candidates]
        return Collaboration(
            way.mode,
            way.device,
            Reason(
                loss=losses[chosen],
                second=None if second is None else candidates[second],
                second_loss=0.0 if second is None else losses[second],
                candidates=len(candidates),
                tried=chosen != ranking.best,
                missed=missed,
            ),
        )

    def reconsider(self, state: CollaborationState, present: Prediction) -> Collaboration | None:
        objective = state.objective or self._objective
        candidates, losses = state.candidates(objective)
        ranking, staying = ranked(losses), objective.loss(present)
        if ranking is None or losses[ranking.best] >= (1.0 - self._change) * staying:
            return None
        way, second = candidates[ranking.best], ranking.second
        return Collaboration(
            way.mode,
            way.device,
            Reason(
                loss=losses[ranking.best],
                second=None if second is None else candidates[second],
                second_loss=0.0 if second is None else losses[second],
                candidates=len(candidates),
            ),
        )

    def _tried(self, candidates: Sequence[Candidate], ranking: Ranking, objective: Objective) -> int:
        """Return the index of the way to take, seldom not the best one."""
        best, losses = ranking.best, ranking.losses
        first = not self._mean_usd
        self._mean_usd += losses[best] if first else 0.05 * (losses[best] - self._mean_usd)
        most_usd = SAVED * self._explore * self._mean_usd
        self._saved_usd = most_usd if first else min(most_usd, self._saved_usd + self._explore * losses[best])
        if len(candidates) < 2 or not self._explore or self._random.random() >= OFTEN:
            return best
        draws = [
            objective.loss(each.expected, self._random.gauss(0.0, 1.0))
            - LASTS * objective.quality_usd * each.expected.informs
            if loss < math.inf
            else math.inf
            for each, loss in zip(candidates, losses, strict=True)
        ]
        drawn = min(range(len(draws)), key=draws.__getitem__)
        cost_usd = losses[drawn] - losses[best]
        if cost_usd > self._saved_usd:
            return best
        self._saved_usd -= cost_usd
        return drawn
