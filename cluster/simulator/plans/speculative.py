"""Mode speculative (DSD): the device drafts γ tokens, the target verifies them in one step.

Where the window policy says γ ≤ 1, the round is fused: it stays in the cloud, with the server's co-located
drafter if it has one, else with the target alone. The device takes up again where the policy says so.
"""

from __future__ import annotations

from cluster.simulator.core import Process
from cluster.simulator.world import Task, World
from cluster.tokenlog import Origin


def speculative(world: World, task: Task) -> Process:
    """Rounds of draft and verification until the output's length is reached."""
    device, log, link, prompt = task.device, task.log, task.device.link, task.request.prompt_tokens
    yield device.acquire()
    began_s = world.now
    if world.reader_at_device:
        arrived_s = link.up(began_s, prompt)
        one_way_s = arrived_s - began_s
        device.occupy(began_s, device.prefill_s(prompt))  # it reads the prompt while the target does
        yield arrived_s
    else:
        told_s = link.down(began_s, prompt)
        one_way_s = told_s - began_s
        device.occupy(told_s, device.prefill_s(prompt))
    server = world.route(task)
    pair = world.pair(task)
    pair.rtt_s = 2 * one_way_s
    session = server.open(task.request.rate, task.request.output_tokens)
    yield from server.first_token(session, prompt)
    seen_s = link.down(world.now, 1)  # by the device
    log.append(seen_s if world.reader_at_device else world.now, 1, Origin.CLOUD)
    known = prompt  # tokens that the drafter has taken in
    distributed = True
    while log.left:
        # Decided when the last verdict reaches the device, from what came with that verdict.
        pair.queue = server.queue
        wished = pair.choose()
        log.switches += log.rounds > 0 and distributed != (wished > 1)
        distributed = wished > 1
        position, context = log.tokens, prompt + log.tokens
        if distributed and log.left > 1:
            gamma = min(wished, log.left - 1)  # the target adds a token of its own
            draft_s = device.decode_s(gamma, context)
            drafted_s = device.occupy(seen_s, device.prefill_s(context - 1 - known) + draft_s)
            yield link.up(drafted_s, gamma)
            arrived_s = world.now
            yield server.work(session, gamma + 1, gamma + 1)
            accepted = task.accepted(position, gamma)
            known = context + accepted
            seen_s = link.down(world.now, accepted + 1)
            pair.note(gamma, accepted, accepted + 1, world.now - arrived_s, draft_s)
            pair.rtt_s = (arrived_s - drafted_s) + (seen_s - world.now)
        else:
            gamma = min(world.fused_window, log.left - 1) if server.drafts else 0
            arrived_s = world.now
            yield server.work(session, gamma + 1, gamma + 1, drafting=gamma)
            accepted = task.accepted(position, gamma)
            seen_s = link.down(world.now, accepted + 1)
            cut = server.drafts and gamma < world.fused_window
            pair.note_fused(gamma, accepted + 1, world.now - arrived_s, cut)
        server.roll_back(session, context + accepted)
        log.verify_s += world.now - arrived_s
        log.speculate(seen_s if world.reader_at_device else world.now, gamma, accepted, distributed)
    server.close(session)
    yield max(seen_s, world.now)
    device.release()
