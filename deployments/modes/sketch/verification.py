"""Verification: the target tells how likely the small models' sentences are, those that are there in one forward."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple

from tandem.deployments.modes.base import forced, scores
from tandem.deployments.request.job import Job
from tandem.deployments.request.session import EndpointSession
from tandem.engine.base import EngineError
from tandem.policies.sketch.doubts import Doubts

IDLE = 0.2
"""Share of the target's places that other requests may have: judging and rewriting makes all their answers later."""
SLACK = 2.0
"""Factor on their expected tokens up to which later claims are judged."""
DoubtsByModel = defaultdict[str, Doubts]
"""Doubts about each small model, shared by the requests of one process."""


class Claim(NamedTuple):
    """A sentence to verify. model: that wrote it; ids: what it adds to the answer."""

    model: str
    ids: Sequence[int]


class Verification:
    """Verification of one answer, in one session for all of its sentences.

    over: whether no more is verified: the target was late, has failed, tells no probabilities, or has judged the last.
    """

    def __init__(self, job: Job, doubts: DoubtsByModel) -> None:
        self.over = False
        self._job, self._doubts = job, doubts
        self._judged = 0  # tokens in the session

    async def doubted(
        self,
        target: EndpointSession,
        said: Sequence[int],
        claims: Sequence[Claim],
        limit_s: float | None,
        following: int = 0,
    ) -> list[bool]:
        """Return of each claim whether it is doubted, in this order after those before and what had been said before
        them; nothing if that is not known within the limit. following: expected tokens of claims to come."""
        ids = [token for claim in claims for token in claim.ids]
        log_p: list[float] = []
        try:
            async with asyncio.timeout(limit_s):
                if not target.is_open:
                    room, adapter = len(ids) + round(SLACK * following), self._job.sampling.adapter
                    await target.open([*self._job.prompt, *said], forced(room, 0, adapter))
                async with aclosing(scores(target, self._judged, ids)) as parts:
                    async for part in parts:
                        log_p += [each.logprob for each in part]
        except (EngineError, TimeoutError):
            log_p = []
        self._judged += len(ids)
        failed = len(log_p) != len(ids)
        self.over = failed or not following
        if self.over:
            with suppress(EngineError):
                await target.close()
        return [] if failed else self._by_claim(claims, log_p)

    def _by_claim(self, claims: Sequence[Claim], log_p: Sequence[float]) -> list[bool]:
        doubted, at = [], 0
        for claim in claims:
            end = at + len(claim.ids)
            doubted.append(self._doubts[claim.model].doubts(sum(log_p[at:end])))
            at = end
        return doubted
