"""Mode cloud: the target decodes alone, and its tokens travel to the reader one by one."""

from __future__ import annotations

from cluster.simulator.core import Process
from cluster.simulator.world import Task, World
from cluster.tokenlog import Origin


def cloud(world: World, task: Task) -> Process:
    """Prefill, then a token a step."""
    log, prompt = task.log, task.request.prompt_tokens
    if world.reader_at_device:
        yield task.device.link.up(world.now, prompt)
    server = world.route(task)
    session = server.open(task.request.rate, task.request.output_tokens)
    yield from server.first_token(session, prompt)
    while True:
        seen = task.device.link.down(world.now, 1) if world.reader_at_device else world.now
        log.append(seen, 1, Origin.CLOUD)
        if not log.left:
            break
        yield server.work(session, 1, 1)
    server.close(session)
    yield log.last_s
