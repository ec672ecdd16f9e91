"""Mode device: a device answers alone, with its own small model."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from cluster.tokenlog import Origin, TokenLog
from deployments.job import Job, JobStats
from deployments.plans.base import Piece, decode
from engine.base import Engine


class OnDevice:
    """The device's model decodes token by token; the cloud's is not asked."""

    def __init__(self, device: Engine) -> None:
        self.device = device

    def run(self, job: Job, log: TokenLog, stats: JobStats) -> AsyncGenerator[Piece, None]:
        return decode(self.device, Origin.DEVICE, job, log)
