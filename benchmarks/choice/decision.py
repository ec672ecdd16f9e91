"""Time of a decision: what choosing costs the router, beside a large fleet."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.learning.report import Report
from tandem.deployments.request.assignment import EndpointInfo, RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.routing import Routing
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing

DECISIONS = 400
"""Decisions that are timed, after a quarter as many."""
SPEEDS = (0.01, 0.03, 0.08, 0.15)
"""Seconds per token of devices, in turn."""


def decision_ms(devices: int, decisions: int = DECISIONS) -> float:
    """Return the median time of a decision of policy `auto` beside so many devices, in milliseconds of this process."""
    chosen = collaboration.create("auto")
    router = Routing(Assigner(chosen, lambda: routing.create("jsq"), 64))
    verifiers = tuple(EndpointInfo(f"verifier {n}", f"v:{n}", "verifier", "big", "v") for n in range(4))
    fleet = {name: _device(n, name) for n, name in enumerate(f"device {n}" for n in range(devices))}
    router.see(Snapshot(1, {"verifier": verifiers}, fleet))
    taken: list[float] = []
    for n in range(decisions + decisions // 4):
        wanted = RoutingRequest(prompt_tokens=50 + n % 400, max_tokens=300, request=n)
        began_s = time.process_time()
        made = router.assign_now(wanted, now_s=0.1 * n)
        taken.append(time.process_time() - began_s)
        came = Report("me", made.device or "", 100, True, Bill(), mode=made.mode, request=n)
        router.learn(replace(came, ttft_s=0.3, tpot_s=0.04, forecast=made.forecast))
    return 1e3 * median(taken[decisions // 4 :])


def _device(n: int, name: str) -> DeviceRecord:
    speed = SPEEDS[n % len(SPEEDS)] * (1 + 1e-4 * n)
    return DeviceRecord(
        name=name,
        address=f"d:{n}",
        profile="p",
        capacity=2,
        model="small",
        vocabulary="v",
        prefill_token_s=speed / 20,
        decode_token_s=speed,
        prefill_j=0.01,
        decode_j=0.5,
    )
