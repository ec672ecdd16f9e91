"""What is known of servers and devices that race: how long they take to a first token, and how long answers are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from deployments.request.assignment import EndpointInfo
from policies.race import RaceHistory
from policies.samples import Latencies, Outputs
from policies.step_time import StepTimeModel

T = TypeVar("T")

KEPT = 4096
"""Endpoints that were not used for longest are forgotten first."""


class Kept(Generic[T]):
    """What is known by key, of the KEPT keys that were used last."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, T] = OrderedDict()

    def of(self, key: str, new: Callable[[], T]) -> T:
        """What is known of a key, `new()` at first."""
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = new()
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return found


class Rivals:
    """outputs: lengths of answers, whoever gave them."""

    def __init__(self) -> None:
        self.outputs = Outputs()
        self._servers: Kept[Latencies] = Kept()  # by model
        self._devices: Kept[StepTimeModel] = Kept()  # by name

    def of(self, server: EndpointInfo, device: EndpointInfo) -> RaceHistory:
        """What is known of the two; whatever is noted there, is known of either in all other races."""
        return RaceHistory(
            ttft=self._servers.of(server.model, Latencies),
            prefill=self._devices.of(
                device.name, lambda: StepTimeModel(device.rtt_s, device.prefill_token_s)
            ),
            outputs=self.outputs,
        )
