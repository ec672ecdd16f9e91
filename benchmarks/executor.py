"""An executor and its router in this process, over endpoints that the caller names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from random import Random

from cluster.registry import DeviceRecord
from deployments.assigner import Assigner
from deployments.directory import Snapshot
from deployments.experience import Experience
from deployments.modes.base import DRAFTER, VERIFIER, Tools
from deployments.request.assignment import Assignment, EndpointInfo, RoutingRequest
from deployments.request.executor import Executor
from deployments.request.job import Job
from deployments.settings import RacingSettings
from engine.base import Engine, Sampling
from policies.collaboration import collaboration
from policies.routing import routing
from policies.window import WindowPolicy

BATCH_LIMIT = 64
_numbers = itertools.count(1)


def local_executor(
    dial: Callable[[EndpointInfo], Engine],
    window: Callable[[], WindowPolicy],
    *,
    drafter: bool = False,
    devices: Sequence[DeviceRecord] = (),
    racing: RacingSettings | None = None,
) -> Executor:
    """Requests are served by one verifier, called "verifier", and by the devices that they name.

    dial: the engine of an endpoint, over whatever link it has.
    window: makes a window policy for a new draft–target pair.
    drafter: whether the cloud has one of its own, called "drafter".
    racing: of races; what they teach is learnt from seed 1 on.
    """
    pools = {pool: (EndpointInfo(pool, "", pool),) for pool in (VERIFIER, *([DRAFTER] if drafter else []))}
    assigner = Assigner(
        collaboration.create("explicit"),
        lambda: routing.create("jsq"),
        BATCH_LIMIT,
        Experience(racing, Random(1)),
    )
    assigner.see(Snapshot(1, pools, {record.name: record for record in devices}))

    async def assign(wanted: RoutingRequest) -> Assignment:
        return assigner.assign(wanted)

    async def dialled(endpoint: EndpointInfo) -> Engine:
        return dial(endpoint)

    return Executor(assign, dialled, Tools(window), report=assigner.take_in)


def device_record(name: str, rtt_s: float = 0.0, prefill_token_s: float = 0.0) -> DeviceRecord:
    """As a device host would register it. prefill_token_s: seconds to take in a token, 0 where not known."""
    return DeviceRecord(
        name=name,
        address="",
        profile="",
        model="",
        vocabulary="",
        rtt_s=rtt_s,
        prefill_token_s=prefill_token_s,
    )


def new_job(prompt: Sequence[int], sampling: Sampling, mode: str, device: str | None = None) -> Job:
    """A request; no two of a process are the same."""
    return Job(next(_numbers), tuple(prompt), sampling, mode, device)
