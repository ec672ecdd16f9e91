"""An executor and its router in this process, over endpoints that the caller names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.modes.base import Services
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.sketch.mode import SketchMode
from tandem.deployments.modes.sketch.settings import SketchSettings
from tandem.deployments.modes.speculative.mode import SpeculativeMode
from tandem.deployments.modes.speculative.settings import SpeculativeSettings
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import Job
from tandem.deployments.request.pools import DRAFTER, MIDDLE, VERIFIER
from tandem.deployments.request.session import Reach
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.routing import Routing
from tandem.engine.base import Engine, Sampling
from tandem.engine.config import Given, Strict
from tandem.engine.sketch.base import Question, SketchFormat
from tandem.engine.split.base import OuterEngine
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing
from tandem.policies.speculation.window import WindowPolicy

BATCH_LIMIT = 64
_numbers = itertools.count(1)


class Sketching(NamedTuple):
    """Sketches that an executor makes. format: how models are asked for them; vocabulary: of the cloud's models."""

    settings: SketchSettings
    format: SketchFormat
    vocabulary: str


def local_executor(
    dial: Callable[[EndpointInfo], Engine],
    window: Callable[[], WindowPolicy],
    *,
    drafter: bool = False,
    devices: Sequence[DeviceRecord] = (),
    outer: OuterEngine | None = None,
    sketching: Sketching | None = None,
) -> Executor:
    """Return an executor with one verifier, called "verifier", and the devices that requests name.

    dial: the engine of an endpoint, over whatever link it has.
    window: makes a window policy for a new draft–target pair.
    drafter: whether the cloud has one of its own, called "drafter".
    outer: the two ends of a split model, if this process is the device that has them; of the rest, the cloud has one,
        called "middle".
    sketching: None: no sketches.

    Draws of chance begin with seed 1.
    """
    there = [VERIFIER, *([DRAFTER] if drafter else []), *([MIDDLE] if outer else [])]
    split = None if outer is None else outer.info.split
    vocabulary = sketching.vocabulary if sketching else ""
    pools = {pool: (EndpointInfo(pool, "", pool, vocabulary=vocabulary, split=split),) for pool in there}
    speculative = SpeculativeSettings().model_copy(update={"window": Given(window)})
    modes: dict[str, Strict] = {SpeculativeMode.name: speculative}
    if sketching is not None:
        modes[SketchMode.name] = sketching.settings
    assigner = Assigner(collaboration.create("explicit"), lambda: routing.create("jsq"), BATCH_LIMIT)
    router = Routing(assigner, modes=modes, random=Random(1))
    router.see(Snapshot(1, pools, {record.name: record for record in devices}))

    async def dialled(endpoint: EndpointInfo) -> Engine:
        return dial(endpoint)

    services = Services(router.ask, router.tell, outer, sketching.format if sketching else None)
    return Executor(router.assign, Reach(dialled), modes, services, report=router.learn)


def device_record(name: str, rtt_s: float = 0.0, prefill_token_s: float = 0.0) -> DeviceRecord:
    """Return a record as a device host registers it. prefill_token_s: seconds to prefill a token, 0 if unknown."""
    return DeviceRecord(
        name=name,
        address="",
        profile="",
        model="",
        vocabulary="",
        rtt_s=rtt_s,
        prefill_token_s=prefill_token_s,
    )


def new_job(
    prompt: Sequence[int],
    sampling: Sampling,
    mode: str,
    device: str | None = None,
    question: Question | None = None,
) -> Job:
    """A request; no two of a process are the same."""
    return Job(next(_numbers), tuple(prompt), sampling, mode, device, question=question)
