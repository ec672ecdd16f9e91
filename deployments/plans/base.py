"""A plan: how one request is answered, written against the Engine protocol and nothing else."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from cluster.tokenlog import Origin, TokenLog
from deployments.job import Job, JobStats
from engine.base import Engine, TokenLogprob


@dataclass(frozen=True, slots=True)
class Piece:
    """Output tokens that are settled: they begin at output `position` and are never taken back."""

    position: int
    ids: list[int]
    origins: list[Origin]
    finish: str | None = None
    logprobs: list[TokenLogprob] | None = None


class Plan(Protocol):
    """The algorithm of one mode. Opens sessions under `job.session`; closing them is the executor's part."""

    def run(self, job: Job, log: TokenLog, stats: JobStats) -> AsyncGenerator[Piece, None]:
        """Continue the answer after `log` (which the executor appends to) until a piece has `finish`.

        Counts rounds, drafted and accepted tokens in `stats`. Engine errors pass through.
        """
        ...


async def decode(engine: Engine, origin: Origin, job: Job, log: TokenLog) -> AsyncGenerator[Piece, None]:
    """Let one engine decode the rest of the answer by itself."""
    position = len(log)
    await engine.open(job.session, job.prompt, job.sampling, log.ids)
    async with aclosing(engine.generate(job.session)) as stream:
        async for tokens in stream:
            yield Piece(position, tokens.ids, [origin] * len(tokens.ids), tokens.finish, tokens.logprobs)
            position += len(tokens.ids)
