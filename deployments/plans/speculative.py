"""Mode speculative (DSD): a small model drafts γ tokens, the target verifies them in one step.

Distributed when the drafter is a device, fused when it is the cloud's own drafter; the rounds are the same.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import NamedTuple

import msgspec

from cluster.tokenlog import Origin, TokenLog
from deployments.job import Job, JobStats
from deployments.plans.base import Piece
from engine.base import Draft, Engine, Sampling, Verdict
from policies.window import WindowPolicy, WindowState

RECENT_ROUNDS = 8  # what "recent acceptance" and "recent time per token" look back on
DRAFT_SEED = 0x5DEECE66D  # see drafting()


class Speculative:
    """Draft on `drafter`, verify on `target`, emit the accepted prefix and the target's own next token.

    window: chooses γ each round, unless the client fixed it. rtt_s: round-trip time of the drafter's link,
    seconds; queue: the target's queue depth as a share of its batch limit (both for the window policy).
    """

    def __init__(
        self, target: Engine, drafter: Engine, window: WindowPolicy, rtt_s: float = 0.0, queue: float = 0.0
    ) -> None:
        self.target, self.drafter = target, drafter
        self._gamma = _Gamma(window, rtt_s, queue)

    async def run(self, job: Job, log: TokenLog, stats: JobStats) -> AsyncGenerator[Piece, None]:
        session, position = job.session, len(log)
        ready = asyncio.ensure_future(  # the drafter reads the prompt while the target does
            self.drafter.open(session, job.prompt, drafting(job.sampling), log.ids)
        )
        try:
            await self.target.open(session, job.prompt, job.sampling, log.ids)
            verdict = await self.target.verify(session, [])
            yield _piece(position, Draft([]), verdict)
            if verdict.finish is None:
                await ready
            while verdict.finish is None:
                confirmed_from, confirmed = position, verdict.ids
                position += len(confirmed)
                # the target adds one token of its own, so the last one of the output is never drafted
                gamma = min(self._gamma.choose(job.window), job.sampling.max_tokens - position - 1)
                draft = Draft([])
                if gamma > 0:
                    draft = await self.drafter.draft(session, confirmed_from, confirmed, gamma)
                began = time.perf_counter()
                verdict = await self.target.verify(session, draft.ids, draft.probs)
                self._gamma.note(len(draft.ids), verdict, time.perf_counter() - began)
                stats.rounds += 1
                stats.drafted += len(draft.ids)
                stats.accepted += verdict.accepted
                yield _piece(position, draft, verdict)
        finally:
            ready.cancel()
            ready.add_done_callback(lambda task: task.cancelled() or task.exception())


def drafting(sampling: Sampling) -> Sampling:
    """What the drafter samples with: the client's distribution, without what only the target decides.

    Its seed differs from the target's: rejection sampling is exact only if the coins that accept a token
    are independent of those that drew it. Our engines keep them apart anyhow; another one need not.
    """
    return msgspec.structs.replace(sampling, stop=(), logprobs=-1, seed=sampling.seed ^ DRAFT_SEED)


def _piece(position: int, draft: Draft, verdict: Verdict) -> Piece:
    """The verdict's tokens with their origins: accepted drafts first, then the target's own."""
    accepted = min(verdict.accepted, len(verdict.ids))
    own = Origin.CORRECTED if accepted < len(draft.ids) else Origin.BONUS if draft.ids else Origin.CLOUD
    origins = [Origin.DRAFT] * accepted + [own] * (len(verdict.ids) - accepted)
    return Piece(position, verdict.ids, origins, verdict.finish, verdict.logprobs)


class _Round(NamedTuple):
    drafted: int
    accepted: int
    tokens: int
    seconds: float  # of verification


class _Gamma:
    """Asks the window policy for γ with what this draft–target pair has seen recently."""

    def __init__(self, policy: WindowPolicy, rtt_s: float, queue: float) -> None:
        self._policy, self._rtt_s, self._queue = policy, rtt_s, queue
        self._rounds: deque[_Round] = deque(maxlen=RECENT_ROUNDS)
        self._previous = 0

    def note(self, drafted: int, verdict: Verdict, seconds: float) -> None:
        self._rounds.append(_Round(drafted, verdict.accepted, len(verdict.ids), seconds))

    def choose(self, wished: int | None) -> int:
        """The client's γ if it wished one, else the policy's."""
        if wished is not None:
            return wished
        drafted = sum(r.drafted for r in self._rounds)
        tokens = sum(r.tokens for r in self._rounds)
        self._previous = self._policy.choose(
            WindowState(
                acceptance=sum(r.accepted for r in self._rounds) / drafted if drafted else 0.0,
                rtt_s=self._rtt_s,
                tpot_s=sum(r.seconds for r in self._rounds) / tokens if tokens else 0.0,
                queue=self._queue,
                previous=self._previous,
            )
        )
        return self._previous
