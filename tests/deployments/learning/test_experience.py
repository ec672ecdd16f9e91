"""Learned state: what the router learns from answers and gives the next ones, for any number of replicas of the
API."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import replace

import pytest

from tandem.deployments.config.choices import DispatchChoice
from tandem.deployments.learning.experience import Experience, RacingSettings
from tandem.deployments.learning.report import Report
from tandem.deployments.modes.base import Tools
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.speculative import PairBriefing
from tandem.deployments.request.assignment import RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.request.job import Job, JobStats
from tandem.deployments.routing.assigner import Assigner
from tandem.engine.base import EngineStopped, Sampling
from tandem.engine.null_engine import NullEngine
from tandem.policies.cost import Used
from tandem.policies.race.dispatch import Side
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing
from tandem.policies.speculation.window import StaticWindow, WindowState
from tests.deployments.faults import PROMPT, Failing, World, reference
from tests.deployments.modes.test_executor import answer

TOKENS = 24
RACING = RacingSettings(budget=1.0, exchange_rate=0.0, dispatch=DispatchChoice(name="server"))


def world(experience: Experience | None = None) -> World:
    return World(
        [NullEngine()],
        [NullEngine(mistake_every=3)],
        {"phone": NullEngine(mistake_every=4)},
        experience=experience,
    )


def job(mode: str, number: int = 1, **wishes: object) -> Job:
    device = "phone" if mode != "cloud" else None
    return Job(number, PROMPT, Sampling(max_tokens=TOKENS), mode=mode, device=device, account="me", **wishes)  # type: ignore[arg-type]


def briefing(there: World) -> PairBriefing:
    made = there.assigner.assign(RoutingRequest("speculative", "phone"))
    assert isinstance(made.briefing, PairBriefing)
    return pickle.loads(pickle.dumps(made.briefing))


async def test_rounds_are_learnt_and_told() -> None:
    there = world()
    assert briefing(there).pair.seen == 0
    await answer(there, job("speculative"))
    first = briefing(there).pair.seen
    assert first > 0
    await answer(there, job("speculative"))
    assert briefing(there).pair.seen == 2 * first


async def test_a_replica_of_the_api_knows_what_others_have_seen() -> None:
    """The first round's policy sees rounds of other replicas."""
    there, states = world(), list[WindowState]()
    await answer(there, job("speculative"))

    class Watching(StaticWindow):
        def choose(self, state: WindowState) -> int:
            states.append(state)
            return super().choose(state)

    there.executor = Executor(there._assign, there._dial, Tools(Watching), report=there.assigner.take_in)
    await answer(there, job("speculative"))
    assert states[0].judged > 0
    assert states[0].alpha > 0


@pytest.mark.parametrize("mode", ["cloud", "device", "speculative", "race"])
async def test_a_router_that_begins_anew_fails_no_request(mode: str) -> None:
    """Kill it in mid-answer; its successor gets the report of an answer that it has not planned."""
    there = world(Experience(RACING))
    ids: list[int] = []
    async for delta in there.executor.run(job(mode)):
        ids += delta.ids
        if len(ids) == 5:
            successor = Assigner(collaboration.create("explicit"), lambda: routing.create("jsq"), 8)
            successor.see(there.snapshot)
            there.executor._report = successor.take_in
            there.assigner = successor
    assert ids == reference(PROMPT, TOKENS)
    assert there.experience.accounts.of("me").statement().total.requests == 1
    assert there.experience.rivals.outputs.seen == 1
    assert (await answer(there, job(mode, 2)))[0] == ids
    assert there.experience.accounts.of("me").statement().total.requests == 2
    assert not there.experience.races, "no race is waited for"


async def test_a_report_of_a_mode_that_is_not_served_here_is_paid_for_all_the_same() -> None:
    there = world()
    there.assigner.take_in(Report("me", "", 7, True, Bill(1, Used(3, 7), 0.5), {"telepathy": object()}))
    assert there.experience.accounts.of("me").statement().total.server_usd == 0.5


async def test_first_tokens_of_either_side_are_learnt() -> None:
    there = world(Experience(RACING))
    (server,) = there.snapshot.pools["verifier"]
    await answer(there, job("race", 1))
    history = there.experience.rivals.of(server, replace(server, name="phone"))
    assert (len(history.ttft), history.prefill.seen) == (1, 1), (
        "the server began, and handed over to the device"
    )
    assert history.outputs.seen == 1


async def test_what_the_constrained_endpoint_takes_in_later_is_booked_as_well() -> None:
    """The device goes on where the server fails, and the prompt with the answer so far is its to take in."""
    settings = RacingSettings(exchange_rate=1e3, dispatch=DispatchChoice(name="server"))
    there = World(
        [Failing(NullEngine(), "generate", 10)],
        devices={"phone": NullEngine()},
        experience=Experience(settings),
    )
    ids, stats = await answer(there, job("race", 1))
    assert ids == reference(PROMPT, TOKENS)
    assert stats.used.device_in == len(PROMPT) + 10
    budget = there.experience.accounts.of("me").payer.budgets[Side.DEVICE]
    assert (budget.tokens, budget.spent) == (len(PROMPT), len(PROMPT) + 10)


async def test_a_race_that_goes_on_elsewhere_is_one_request() -> None:
    """Both are lost; the prompt is booked once, and as often taken in as it was."""
    there = World(
        [Failing(NullEngine(), "generate", 3), NullEngine()],
        devices={"phone": Failing(NullEngine(), "open", error=lambda: EngineStopped("gone"))},
        experience=Experience(RACING),
    )
    stats: JobStats
    _, stats = await answer(there, job("race", 1))
    assert stats.replans >= 1
    budgets = there.experience.accounts.of("me").payer.budgets
    assert sum(budget.tokens for budget in budgets.values()) == len(PROMPT)
    assert budgets[Side.SERVER].spent == stats.used.server_in > 2 * len(PROMPT)


async def test_concurrent_requests_of_a_pair_share_what_they_see() -> None:
    there, seen = world(), list[int]()

    class Watching(StaticWindow):
        def choose(self, state: WindowState) -> int:
            seen.append(state.judged)
            return super().choose(state)

    there.executor = Executor(there._assign, there._dial, Tools(Watching), report=there.assigner.take_in)
    await asyncio.gather(*(answer(there, job("speculative", n)) for n in range(1, 5)))
    assert max(seen[:10]) > 0, "long before the first of them was over"
