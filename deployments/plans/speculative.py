"""Mode speculative (DSD): a small model drafts γ tokens, the target verifies them in one step.

Distributed, the drafter is a device. Where the window policy says γ ≤ 1, a round is fused: it stays in the cloud,
with the cloud's own drafter if there is one, else with the target alone; the device takes up again where
the policy says so. Whoever drafts is told what the log says, so that every switch is lossless.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import nullcontext

import msgspec

from cluster.tokenlog import Origin, TokenLog
from deployments.job import Job, JobStats
from deployments.plans.base import Piece
from deployments.plans.observer import Observer
from engine.base import Draft, Engine, Sampling, Verdict
from policies.pair import Pair

DRAFT_SEED = 0x5DEECE66D  # see drafting()
FUSED_WINDOW = 4  # γ of the cloud's own drafter in fused rounds


class Speculative:
    """Draft, verify on `target`, emit the accepted prefix and the target's own next token.

    drafter: a device's model, or (distributed: False) the cloud's own. pair: chooses γ each round, unless the
    client fixed it. fused: the cloud's own drafter where `drafter` is a device's. batch_limit: sessions that
    a step of the target takes, by which its queue is measured; 0 where it is not known.
    """

    def __init__(
        self,
        target: Engine,
        drafter: Engine,
        pair: Pair,
        *,
        distributed: bool = False,
        fused: Engine | None = None,
        batch_limit: int = 0,
    ) -> None:
        self.target, self.drafter, self.fused = target, drafter, fused
        self._pair, self._distributed, self._batch_limit = pair, distributed, batch_limit

    async def run(self, job: Job, log: TokenLog, stats: JobStats) -> AsyncGenerator[Piece, None]:
        pair, session = self._pair, job.session
        adaptive = self._distributed and job.window is None
        device = _Drafter(self.drafter, job, log)
        cloud = None if self.fused is None else _Drafter(self.fused, job, log)
        device.begin()  # it reads the prompt while the target does
        try:
            await self.target.open(session, job.prompt, job.sampling, log.ids)
            verdict = await self.target.verify(session, [])
            yield _piece(len(log), Draft([]), verdict)
            distributed = self._distributed
            observer = Observer(pair, self.target, device, self._batch_limit)
            async with observer if adaptive else nullcontext():
                while verdict.finish is None:
                    gamma = job.window if job.window is not None else pair.choose()
                    drafter: _Drafter | None = device
                    if adaptive:
                        stats.switches += distributed != (gamma > 1) and stats.rounds > 0
                        distributed = gamma > 1
                        if not distributed:
                            drafter, gamma = cloud, FUSED_WINDOW
                    # the target adds one token of its own, so the last one of the output is never drafted
                    gamma = min(gamma, job.sampling.max_tokens - len(log) - 1)
                    if drafter is device:
                        observer.drafting()
                    began = time.perf_counter()
                    draft = await drafter.draft(gamma) if drafter is not None and gamma > 0 else Draft([])
                    drafted = time.perf_counter()
                    verdict = await self.target.verify(session, draft.ids, draft.probs)
                    ended = time.perf_counter()
                    if adaptive and not distributed:
                        stats.fused_rounds += 1
                        stats.fused_drafted += len(draft.ids)
                        cut = cloud is not None and len(draft.ids) < FUSED_WINDOW
                        pair.note_fused(len(draft.ids), len(verdict.ids), ended - began, cut)
                    elif draft.ids:
                        draft_s = max(0.0, drafted - began - pair.rtt_s)
                        pair.note(
                            len(draft.ids), verdict.accepted, len(verdict.ids), ended - drafted, draft_s
                        )
                    stats.rounds += 1
                    stats.drafted += len(draft.ids)
                    stats.accepted += verdict.accepted
                    yield _piece(len(log), draft, verdict)
        finally:
            device.forget()
            if cloud is not None:
                cloud.forget()


class _Drafter:
    """A drafter's session of one job: opened in the background, and kept up with the log."""

    def __init__(self, engine: Engine, job: Job, log: TokenLog) -> None:
        self.engine, self._job, self._log = engine, job, log
        self._known = 0  # output tokens it was told of
        self._opening: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Open the session at what the log says now."""
        job = self._job
        self._known = len(self._log)
        self._opening = asyncio.ensure_future(
            self.engine.open(job.session, job.prompt, drafting(job.sampling), self._log.ids)
        )

    async def ready(self) -> None:
        """Wait until the session is open; raises what went wrong with that."""
        if self._opening is None:
            self.begin()
        assert self._opening is not None
        await asyncio.shield(self._opening)

    async def draft(self, gamma: int) -> Draft:
        """Draft after the log's end; what the log got since the last time is told first."""
        await self.ready()
        position, self._known = self._known, len(self._log)
        return await self.engine.draft(self._job.session, position, self._log.ids[position:], gamma)

    def forget(self) -> None:
        """Stop opening, if it still is; the session itself is the executor's to close."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())


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
