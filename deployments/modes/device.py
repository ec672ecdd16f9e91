"""Mode device: a device answers alone, with its own small model."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from tandem.deployments.learning.report import Report
from tandem.deployments.modes.alone import agreement, device_alone, expected_tokens
from tandem.deployments.modes.base import EndpointRole, Mode, ModeRun, RouterPart, decode
from tandem.deployments.request.assignment import Endpoints, Prices, RoutingRequest
from tandem.deployments.request.job import Delta, Job
from tandem.deployments.request.pools import DEVICE
from tandem.deployments.request.session import EndpointSessions
from tandem.deployments.request.tokenlog import Origin, TokenLog
from tandem.engine.config import Strict
from tandem.policies.routing.objectives import Estimate, Leaves, Prediction


class DeviceRouter(RouterPart[Strict]):
    """Expects of a device what its record tells of its speed, or what was measured where that tells nothing."""

    def predict(self, wanted: RoutingRequest, endpoints: Endpoints, prices: Prices) -> Prediction:
        device, tokens = endpoints["device"], expected_tokens(self.router, wanted)
        alone = device_alone(self.router, wanted, device)
        joules = device.joules.of(wanted.prompt_tokens + wanted.sent, round(tokens))
        return Prediction(
            ttft_s=Estimate(alone.ttft_s),
            tpot_s=Estimate(alone.tpot_s),
            usd=Estimate(joules * prices.exchange_rate),
            joules=Estimate(joules),
            lost=agreement(self.router, wanted, device.model).lost,
            leaves=Leaves.NOTHING,
            tokens=tokens,
            rate=wanted.reader_rate,
            assumed=alone.assumed,
        )

    def learn(self, report: Report, taught: object) -> None:
        forecast = report.forecast
        if forecast is None or not forecast.device or not forecast.mode == report.mode == DeviceMode.name:
            return
        times = self.router.shared.device(forecast.device)
        if report.ttft_s:
            times.first.note(forecast.prompt_tokens, report.ttft_s / forecast.load)
        if report.tpot_s:
            times.decode.note(report.tpot_s / forecast.load)


class DeviceMode(Mode):
    """The device's model decodes token by token; the cloud's is asked only if the device fails."""

    name = "device"
    roles = (EndpointRole("device", DEVICE, if_lost="cloud"),)
    router = DeviceRouter
    local = True

    def start(self, job: Job) -> ModeRun:
        return _DeviceRun(job)


class _DeviceRun(ModeRun):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def run(self, sessions: EndpointSessions, log: TokenLog, briefing: object) -> AsyncGenerator[Delta, None]:
        return decode(sessions["device"], Origin.DEVICE, self._job, log)
