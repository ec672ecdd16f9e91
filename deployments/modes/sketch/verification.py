"""Verification: the target tells how likely the small models' sentences are, those that are there in one forward."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

from tandem.deployments.modes.base import score
from tandem.deployments.request.job import Job
from tandem.deployments.request.session import EndpointSession
from tandem.engine.base import EngineError
from tandem.policies.sketch.doubts import Doubts

DoubtsByModel = defaultdict[str, Doubts]
"""Doubts about each small model, shared by the requests of one process."""


class Claim(NamedTuple):
    """A sentence to verify. model: that wrote it; ids: what it adds to the answer."""

    model: str
    ids: Sequence[int]


class Verification:
    """Verification of one answer.

    over: whether no more is verified, as the target was late, has failed, or tells no probabilities.
    """

    def __init__(self, job: Job, doubts: DoubtsByModel) -> None:
        self.over = False
        self._job, self._doubts = job, doubts

    async def doubted(
        self, target: EndpointSession, said: Sequence[int], claims: Sequence[Claim], limit_s: float | None
    ) -> list[bool]:
        """Return of each claim whether it is doubted, in this order after what was said; nothing if that is not known
        within the limit."""
        prompt, adapter = self._job.prompt, self._job.sampling.adapter
        known = len(prompt) + len(said)
        text = [*prompt, *said, *(token for claim in claims for token in claim.ids)]
        log_p: list[float] = []
        try:
            async with asyncio.timeout(limit_s), aclosing(score(target, text, known, 0, adapter)) as deltas:
                async for delta in deltas:
                    log_p += [each.logprob for each in delta.prompt_logprobs or ()]
        except (EngineError, TimeoutError):
            log_p = []
        if len(log_p) != len(text) - known:
            self.over = True
            return []
        doubted, at = [], 0
        for claim in claims:
            end = at + len(claim.ids)
            doubted.append(self._doubts[claim.model].doubts(sum(log_p[at:end])))
            at = end
        return doubted
