"""Mode cloud: the cloud's model answers alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from deployments.modes.base import VERIFIER, Mode, ModeRun, Role, decode
from deployments.request.job import Delta, Job
from deployments.request.session import EndpointSessions
from deployments.request.tokenlog import Origin, TokenLog


class CloudMode(Mode):
    """The target decodes token by token."""

    name = "cloud"
    roles = (Role("target", VERIFIER),)

    def start(self, job: Job) -> ModeRun:
        return _CloudRun(job)


class _CloudRun(ModeRun):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def run(self, sessions: EndpointSessions, log: TokenLog, briefing: object) -> AsyncGenerator[Delta, None]:
        return decode(sessions["target"], Origin.CLOUD, self._job, log)
