"""Mode cloud: the cloud's model answers alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from tandem.deployments.modes.base import EndpointRole, Mode, ModeRun, decode, score
from tandem.deployments.request.job import Delta, Job
from tandem.deployments.request.pools import VERIFIER
from tandem.deployments.request.session import EndpointSession, EndpointSessions
from tandem.deployments.request.tokenlog import Origin, TokenLog


class CloudMode(Mode):
    """The target decodes token by token."""

    name = "cloud"
    roles = (EndpointRole("target", VERIFIER),)

    def start(self, job: Job) -> ModeRun:
        return _CloudRun(job)


class _CloudRun(ModeRun):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        self._scored = 1 if job.scored else len(job.prompt)  # tokens of the prompt; its first has no score

    def run(self, sessions: EndpointSessions, log: TokenLog, briefing: object) -> AsyncGenerator[Delta, None]:
        target = sessions["target"]
        if self._scored < len(self._job.prompt):
            return self._score_and_decode(target, log)
        return decode(target, Origin.CLOUD, self._job, log)

    async def _score_and_decode(self, target: EndpointSession, log: TokenLog) -> AsyncGenerator[Delta, None]:
        job = self._job
        alternatives, adapter = job.sampling.logprobs, job.sampling.adapter
        async with aclosing(score(target, job.prompt, self._scored, alternatives, adapter)) as deltas:
            async for delta in deltas:
                self._scored += len(delta.prompt_logprobs or ())
                yield delta
        async with aclosing(decode(target, Origin.CLOUD, job, log)) as deltas:
            async for delta in deltas:
                yield delta
