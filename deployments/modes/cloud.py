"""Mode cloud: the cloud's model answers alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from tandem.deployments.learning.report import Report
from tandem.deployments.modes.alone import by_target, learn_target
from tandem.deployments.modes.base import EndpointRole, Mode, ModeRun, RouterPart, decode, score
from tandem.deployments.request.assignment import Endpoints, Prices, RoutingRequest
from tandem.deployments.request.job import Delta, Job
from tandem.deployments.request.pools import VERIFIER
from tandem.deployments.request.session import EndpointSession, EndpointSessions
from tandem.deployments.request.tokenlog import Origin, TokenLog
from tandem.engine.config import Strict
from tandem.policies.routing.objectives import Prediction


class CloudRouter(RouterPart[Strict]):
    """Learns targets' times from answers that they gave alone."""

    def predict(self, wanted: RoutingRequest, endpoints: Endpoints, prices: Prices) -> Prediction:
        return by_target(self.router, wanted, endpoints["target"], prices)

    def learn(self, report: Report, taught: object) -> None:
        learn_target(self.router, report, CloudMode.name)


class CloudMode(Mode):
    """The target decodes token by token."""

    name = "cloud"
    roles = (EndpointRole("target", VERIFIER),)
    router = CloudRouter

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
        async with aclosing(score(target, job.prompt, self._scored, job.sampling)) as deltas:
            async for delta in deltas:
                self._scored += len(delta.prompt_logprobs or ())
                yield delta
        async with aclosing(decode(target, Origin.CLOUD, job, log)) as deltas:
            async for delta in deltas:
                yield delta
