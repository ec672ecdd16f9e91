"""Mode cloud: the cloud's model answers alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from cluster.tokenlog import Origin, TokenLog
from deployments.job import Job, JobStats
from deployments.plans.base import Piece, decode
from engine.base import Engine


class Cloud:
    """The target decodes token by token."""

    def __init__(self, target: Engine) -> None:
        self.target = target

    def run(self, job: Job, log: TokenLog, stats: JobStats) -> AsyncGenerator[Piece, None]:
        return decode(self.target, Origin.CLOUD, job, log)
