"""Mode device: the device answers alone; nothing travels."""

from __future__ import annotations

from cluster.simulator.core import Process
from cluster.simulator.world import Task, World
from cluster.tokenlog import Origin


def device(world: World, task: Task) -> Process:
    """Prefill, then a token at a time; requests that the device holds at once take turns."""
    host, log, prompt = task.device, task.log, task.request.prompt_tokens
    yield host.acquire()
    yield host.occupy(world.now, host.prefill_s(prompt))
    log.append(world.now, 1, Origin.DEVICE)
    while log.left:
        yield host.occupy(world.now, host.decode_s(1, prompt + log.tokens))
        log.append(world.now, 1, Origin.DEVICE)
    host.release()
