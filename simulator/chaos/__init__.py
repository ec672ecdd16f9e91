"""Deterministic faults: a seed draws a small system, its requests and faults; then promises are checked. A failing
seed replays to the byte.

Processes die and come back, or are stopped, engines hang in them, devices leave for a while, links stall, are cut and
heal, answers come late, the router or the scheduler is lost, a pool is drained, endpoints are full. Whatever happens,
as long as one endpoint could finish a request and its reader can be reached:

1. Every accepted request ends exactly once, whole; its tokens are those of an undisturbed run.
2. No reader who can be reached waits longer between two deliveries, or for the end, than `promised_s`; nor, where there
   is room for all, longer than without faults and outages by `GAP_S` for each endpoint lost, once more if its engine
   hung while it was slow, and for its device if that is away, and by `ROUTER_S` if there is no router, except in modes
   whose answers wait for expansions or for one device.
3. No session, task or block of memory is left behind.
4. A device that leaves in mid-answer, and whose connection is back in time, goes on with the session that it had.
   One whose middle is killed, or stopped, goes on at another within `promises.MIDDLE_S`, if nothing else goes wrong.
5. A key's bills are booked once each, whatever dies; its dollars and its answers at once stay within its limits.
6. The endpoint that the budget of races limits takes in no token beyond it, unless the other endpoint has failed.

Some seeds have devices that dial in, too: `simulator.chaos.dialled` says what is promised to those.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from tandem.simulator.chaos.dialled import play_dialled
from tandem.simulator.chaos.promises import ChaosOutcome, check, longest_wait_s
from tandem.simulator.chaos.saboteur import FragileWorld, Saboteur
from tandem.simulator.chaos.scenario import Fault, scenario, tenants
from tandem.simulator.clock import Deadlock
from tandem.simulator.config.config import Config
from tandem.simulator.runs.run import Clients
from tandem.simulator.workload import Request
from tandem.simulator.world.network import SILENCE_S

__all__ = ["ChaosOutcome", "Fault", "play", "scenario"]


MOST_EVENTS = 1_000_000
"""Most events of a seed; few have as many as 20,000."""


def play(seed: int) -> ChaosOutcome:
    """Run a seed and check all promises."""
    config, requests, faults = scenario(seed)
    outcome = _run(seed, config, requests, faults)
    with TemporaryDirectory() as folder:
        played = play_dialled(seed, Path(folder))
    outcome.broken += played.broken
    outcome.faults += played.faults
    if outcome.late and not outcome.broken:  # perhaps because of the load
        calm = _run(seed, config, requests, []).answers
        for number, late_s in outcome.late.items():
            if late_s > longest_wait_s(calm[number]):
                mode = outcome.answers[number].request.mode
                outcome.broken.append(f"request {number} ({mode}) was kept waiting {late_s:.1f} s too long")
    return outcome


def _run(seed: int, config: Config, requests: list[Request], faults: list[Fault]) -> ChaosOutcome:
    with TemporaryDirectory() as folder:
        return _play(seed, FragileWorld(config, tenants(seed), Path(folder)), requests, faults)


def _play(seed: int, world: FragileWorld, requests: list[Request], faults: list[Fault]) -> ChaosOutcome:
    clients, saboteur = Clients(world, lambda _: None), Saboteur(world)
    outcome = ChaosOutcome(seed, answers=clients.answers)

    async def main() -> None:
        if world.house is not None:
            await world.house.open()
        for fault in faults:
            world.loop.call_at(fault.at_s, saboteur.begin, fault)
        await clients.run(requests)
        await saboteur.end()
        await asyncio.sleep(2 * SILENCE_S)  # what is still on its way arrives
        if world.house is not None:
            outcome.broken += await world.house.close()

    world.loop.most_events = MOST_EVENTS
    try:
        world.loop.run(main())
    except Deadlock:
        outcome.broken.append("deadlock: nothing is left to happen, and requests are under way")
    except Exception as error:
        outcome.broken.append(f"crash: {type(error).__name__}: {error}")
    outcome.faults = saboteur.done
    if not outcome.broken:
        check(outcome, world)
    return outcome
