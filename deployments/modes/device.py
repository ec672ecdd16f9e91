"""Mode device: a device answers alone, with its own small model."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from tandem.deployments.modes.base import EndpointRole, Mode, ModeRun, decode
from tandem.deployments.request.job import Delta, Job
from tandem.deployments.request.pools import DEVICE
from tandem.deployments.request.session import EndpointSessions
from tandem.deployments.request.tokenlog import Origin, TokenLog


class DeviceMode(Mode):
    """The device's model decodes token by token; the cloud's is asked only if the device fails."""

    name = "device"
    roles = (EndpointRole("device", DEVICE, if_lost="cloud"),)
    local = True

    def start(self, job: Job) -> ModeRun:
        return _DeviceRun(job)


class _DeviceRun(ModeRun):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def run(self, sessions: EndpointSessions, log: TokenLog, briefing: object) -> AsyncGenerator[Delta, None]:
        return decode(sessions["device"], Origin.DEVICE, self._job, log)
