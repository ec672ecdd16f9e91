"""Statistics of servers and devices that race: times to first token, and answer lengths."""

from __future__ import annotations

from tandem.deployments.lru import LRUTable
from tandem.deployments.request.assignment import EndpointInfo
from tandem.policies.estimators.step_time import StepTimeModel
from tandem.policies.estimators.windows import Latencies, Outputs
from tandem.policies.race.race import RaceHistory

KEPT = 4096
"""Endpoints that were not used for longest are forgotten first."""


class Rivals:
    """Statistics of racing endpoints. outputs: lengths of answers, of any endpoint."""

    def __init__(self, outputs: Outputs | None = None) -> None:
        self.outputs = Outputs() if outputs is None else outputs
        self._servers: LRUTable[str, Latencies] = LRUTable(KEPT)  # by model
        self._resumed: LRUTable[str, Latencies] = LRUTable(KEPT)  # likewise
        self._devices: LRUTable[str, StepTimeModel] = LRUTable(KEPT)  # by name

    def of(self, server: EndpointInfo, device: EndpointInfo) -> RaceHistory:
        """Return the statistics of two endpoints; what is recorded there counts in all their other races."""
        return RaceHistory(
            ttft=self._servers.of(server.model, Latencies),
            prefill=self._devices.of(
                device.name, lambda: StepTimeModel(device.rtt_s, device.prefill_token_s)
            ),
            outputs=self.outputs,
            resumed=self._resumed.of(server.model, Latencies),
        )
