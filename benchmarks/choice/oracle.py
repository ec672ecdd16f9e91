"""Oracle: runs every mode on the same request, under the same load by others.

The simulation forks where a request is about to be assigned. Each child gives it one of the modes, goes on until that
answer has ended, and tells its loss; the parent goes on with the policy's own choice.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import mean
from typing import NamedTuple

from tandem.benchmarks.choice.workloads import MODES, Workload
from tandem.policies.routing.objectives import Objective
from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.results.loss import loss_usd
from tandem.simulator.runs.run import Clients
from tandem.simulator.workload import Request
from tandem.simulator.world.world import World


class Judge(Clients):
    """Clients some of whose requests are answered in every mode.

    losses: of the judged requests, by index, in the order of MODES.
    """

    def __init__(self, world: World, judged: Collection[int], objective: Objective) -> None:
        super().__init__(world, lambda _: None)
        self._judged, self._objective = set(judged), objective
        self._count = 0
        self.losses: dict[int, list[float]] = {}

    async def _ask(self, request: Request, device: int) -> None:
        index, self._count = self._count, self._count + 1
        if index not in self._judged:
            await super()._ask(request, device)
            return
        losses: list[float] = []
        for mode in MODES:
            reading, writing = os.pipe()
            child = os.fork()
            if not child:
                await self._tell(replace(request, mode=mode), device, writing)
            losses.append(_told(child, reading, writing))
        self.losses[index] = losses
        await super()._ask(request, device)

    async def _tell(self, request: Request, device: int, pipe: int) -> None:
        """Write the loss of an answer into the pipe, and end this process."""
        asyncio._set_running_loop(self._world.loop)  # the parent's does not count in another process
        self._judged.clear()
        position = len(self.answers)
        try:
            await super()._ask(request, device)
            os.write(pipe, struct.pack("d", loss_usd(self.answers[position], self._objective)))
        finally:
            os._exit(0)


def _told(child: int, reading: int, writing: int) -> float:
    """Return what a child has written into its pipe, once it has ended."""
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return float(struct.unpack("d", told)[0])


class Judgement(NamedTuple):
    """Losses of judged requests, dollars, in order.

    own: of the policy's answers.
    modes: of every mode's, in the order of MODES.
    answers: the policy's, to all requests.
    """

    own: list[float]
    modes: list[list[float]]
    answers: list[SimulatedAnswer]


def judge(
    workload: Workload, seed: int, count: int, judged: Sequence[int], objective: Objective
) -> Judgement:
    """Run the policy `auto` on a workload, and every mode on the judged requests. count: of requests."""
    world = World(workload.config(seed, count, "auto"))
    clients = Judge(world, judged, objective)
    _run(world, clients, workload, workload.requests(seed, count))
    own = [loss_usd(clients.answers[index], objective) for index in judged]
    return Judgement(own, [clients.losses[index] for index in judged], clients.answers)


def mean_loss(workload: Workload, seed: int, count: int, objective: Objective, mode: str) -> float:
    """Return the mean loss of all answers in a mode, or of a rival that has several."""
    world = World(workload.config(seed, count, "explicit", mode))
    clients = Clients(world, lambda _: None)
    _run(world, clients, workload, workload.requests(seed, count, mode))
    return mean(loss_usd(answer, objective) for answer in clients.answers)


def _run(world: World, clients: Clients, workload: Workload, requests: Sequence[Request]) -> None:
    async def run() -> None:
        drift = asyncio.get_running_loop().create_task(workload.drift(world, len(requests)))
        await clients.run(requests)
        await drift

    world.loop.run(run())
