"""A race's budget is a limit at any concurrency: tokens, requests and devices of a simulated system."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import product
from random import Random

import pytest

from tandem.deployments.learning.report import Report
from tandem.deployments.modes.race.router import RaceRouter
from tandem.deployments.request.assignment import Assignment, RoutingRequest
from tandem.policies.race.budget import Budget
from tandem.policies.race.dispatch import Side
from tandem.simulator.config.config import Config
from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.runs.run import Clients
from tandem.simulator.workload import Request
from tandem.simulator.world.world import World
from tests.simulator.configurations import config

UNLIKE = [
    {
        "rates": {"prefill_tokens_per_s": prefill, "decode_tokens_per_s": decode},
        "sessions": sessions,
        "power_w": 10.0,
        "link": {"rtt_ms": rtt_ms},
    }
    for prefill, decode, sessions, rtt_ms in [(2000, 60, 64, 5), (200, 20, 64, 80), (300, 30, 2, 20)]
]


class Watched(World):
    """A world whose budgets are looked at whenever a race was planned or reported."""

    def __init__(self, config: Config) -> None:
        self.most = 0.0  # of the reserved tokens' share of what was allowed
        super().__init__(config)

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        assignment = await super().assign(wanted)
        self.look()
        return assignment

    def report(self, reports: Sequence[Report]) -> None:
        super().report(reports)
        self.look()

    @property
    def races(self) -> RaceRouter:
        part = self.routing.modes["race"]
        assert isinstance(part, RaceRouter)
        return part

    def budget(self, side: Side) -> Budget:
        return self.races.accounts[""].budgets[side]

    def look(self) -> None:
        for side in Side:
            budget = self.budget(side)
            assert budget.spent <= budget.reserved <= budget.allowed + 1e-9
            self.most = max(self.most, budget.reserved / max(budget.allowed, 1e-9))


def at_once(
    budget: float, side: Side, dispatch: str, many: int = 50, rounds: int = 6
) -> tuple[Watched, list[SimulatedAnswer]]:
    """Simulate `many` requests at once, repeatedly: each as soon as the last ones are over."""
    random = Random(7)
    world = Watched(
        config(
            mode="race",
            reader="cloud",
            racing={"dispatch": {"name": dispatch}, "migration": {"name": "buffered"}},
            accounts={"budget": budget, "exchange_rate": float(side is Side.DEVICE)},
            targets=[{"model": "t", "measured": {"base_s": 0.1, "token_s": 1e-4}}],
            devices=UNLIKE,
        )
    )
    asked = [
        Request(
            60.0 * n, random.randint(1, 200), 20, bytes(20), random.randrange(3), random.choice([0.0, 5.0])
        )
        for n in range(rounds)
        for _ in range(many)
    ]
    clients = Clients(world, lambda _: None)
    world.loop.run(clients.run(asked))
    world.loop.run(asyncio.sleep(1.0))  # until the last report has come
    return world, clients.answers


DISPATCHES = ("disco", "stochastic", "server", "device")
CASES = list(product((0.0, 0.1, 0.5), Side, DISPATCHES))


@pytest.mark.parametrize(
    ("budget", "side", "dispatch"),
    [pytest.param(*case, marks=pytest.mark.slow if n % 5 else ()) for n, case in enumerate(CASES)],
)
def test_fifty_at_once_overspend_nothing(budget: float, side: Side, dispatch: str) -> None:
    world, answers = at_once(budget, side, dispatch)
    used = [answer.stats.used for answer in answers if answer.stats is not None]
    taken_in = sum(each.device_in if side is Side.DEVICE else each.server_in for each in used)
    assert taken_in <= budget * sum(answer.prompt_tokens for answer in answers)
    assert {answer.failure for answer in answers} <= {None, "overloaded"}
    assert not world.races.races
    books = world.budget(side)
    assert books.spent == books.reserved, "what was not spent was given back"
    if budget and dispatch != str(Side.SERVER if side is Side.DEVICE else Side.DEVICE):
        assert taken_in > 0.5 * books.allowed, "and it is used"
