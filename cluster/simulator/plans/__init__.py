"""How a request is answered, in virtual time: one small process per mode, as in `deployments/plans`."""

from __future__ import annotations

from collections.abc import Callable

from cluster.simulator.core import Process
from cluster.simulator.plans.cloud import cloud
from cluster.simulator.plans.device import device
from cluster.simulator.plans.race import race
from cluster.simulator.plans.speculative import speculative
from cluster.simulator.world import Task, World

PLANS: dict[str, Callable[[World, Task], Process]] = {
    "cloud": cloud,
    "device": device,
    "race": race,
    "speculative": speculative,
}
