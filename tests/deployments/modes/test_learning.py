"""Learned state: what the router learns from answers and gives the next ones, for any number of replicas of the
API."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import replace

import pytest

from tandem.deployments.config.settings import AccountSettings
from tandem.deployments.learning.report import Report
from tandem.deployments.modes.race.router import RaceRouter
from tandem.deployments.modes.race.settings import DispatchChoice, RaceSettings
from tandem.deployments.modes.speculative.mode import PairBriefing
from tandem.deployments.request.assignment import RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.request.job import Job, JobStats
from tandem.engine.base import EngineStopped, Sampling
from tandem.engine.null.engine import NullEngine
from tandem.policies.cost import Used
from tandem.policies.race.dispatch import Side
from tandem.policies.speculation.window import StaticWindow, WindowState
from tests.deployments.faults import PROMPT, Failing, World, reference, with_window
from tests.deployments.modes.test_executor import answer

TOKENS = 24
ACCOUNTS = AccountSettings(budget=1.0, exchange_rate=0.0)
SERVER_FIRST = RaceSettings(dispatch=DispatchChoice(name="server"))


def world() -> World:
    return World(
        [NullEngine()],
        [NullEngine(mistake_every=3)],
        {"phone": NullEngine(mistake_every=4)},
        accounts=ACCOUNTS,
        race=SERVER_FIRST,
    )


def races(there: World) -> RaceRouter:
    part = there.router.modes["race"]
    assert isinstance(part, RaceRouter)
    return part


def job(mode: str, number: int = 1, **wishes: object) -> Job:
    device = "phone" if mode != "cloud" else None
    return Job(number, PROMPT, Sampling(max_tokens=TOKENS), mode=mode, device=device, account="me", **wishes)  # type: ignore[arg-type]


def briefing(there: World) -> PairBriefing:
    made = there.router.assign_now(RoutingRequest("speculative", "phone"))
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

    there.executor = there.new_executor(speculative=with_window(Watching))
    await answer(there, job("speculative"))
    assert states[0].judged > 0
    assert states[0].alpha > 0


@pytest.mark.parametrize("mode", ["cloud", "device", "speculative", "race"])
async def test_a_router_that_begins_anew_fails_no_request(mode: str) -> None:
    """Kill it in mid-answer; its successor gets the report of an answer that it has not planned."""
    there = world()
    ids: list[int] = []
    async for delta in there.executor.run(job(mode)):
        ids += delta.ids
        if len(ids) == 5:
            there.router = there.new_router()
    assert ids == reference(PROMPT, TOKENS)
    assert there.bill("me").requests == 1
    assert races(there).rivals.outputs.seen == 1
    assert (await answer(there, job(mode, 2)))[0] == ids
    assert there.bill("me").requests == 2
    assert not races(there).races, "no race is waited for"


async def test_a_mode_that_is_not_served_here_or_cannot_learn_keeps_no_other_from_learning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, failed = world(), list[object]()

    def learn(report: Report, taught: object) -> None:
        failed.append(taught)
        raise ZeroDivisionError

    monkeypatch.setattr(there.router.modes["cloud"], "learn", learn)
    there.router.learn(Report("me", "", 7, True, Bill(1, Used(3, 7), 0.5), {"telepathy": object()}))
    assert failed == [None]
    assert races(there).rivals.outputs.seen == 1


async def test_first_tokens_of_either_side_are_learnt() -> None:
    there = world()
    (server,) = there.snapshot.pools["verifier"]
    await answer(there, job("race", 1))
    history = races(there).rivals.of(server, replace(server, name="phone"))
    assert (len(history.ttft), history.prefill.seen) == (1, 1), (
        "the server began, and handed over to the device"
    )
    assert history.outputs.seen == 1


async def test_what_the_constrained_endpoint_takes_in_later_is_booked_as_well() -> None:
    """The device goes on where the server fails, and the prompt with the answer so far is its to take in."""
    there = World(
        [Failing(NullEngine(), "generate", 10)],
        devices={"phone": NullEngine()},
        accounts=AccountSettings(exchange_rate=1e3),
        race=SERVER_FIRST,
    )
    ids, stats = await answer(there, job("race", 1))
    assert ids == reference(PROMPT, TOKENS)
    assert stats.used.device_in == len(PROMPT) + 10
    budget = races(there).accounts["me"].budgets[Side.DEVICE]
    assert (budget.tokens, budget.spent) == (len(PROMPT), len(PROMPT) + 10)


async def test_a_race_that_goes_on_elsewhere_is_one_request() -> None:
    """Both are lost; the prompt is booked once, and as often taken in as it was."""
    there = World(
        [Failing(NullEngine(), "generate", 3), NullEngine()],
        devices={"phone": Failing(NullEngine(), "open", error=lambda: EngineStopped("gone"))},
        accounts=ACCOUNTS,
        race=SERVER_FIRST,
    )
    stats: JobStats
    _, stats = await answer(there, job("race", 1))
    assert stats.replans >= 1
    budgets = races(there).accounts["me"].budgets
    assert sum(budget.tokens for budget in budgets.values()) == len(PROMPT)
    assert budgets[Side.SERVER].spent == stats.used.server_in > 2 * len(PROMPT)


async def test_concurrent_requests_of_a_pair_share_what_they_see() -> None:
    there, seen = world(), list[int]()

    class Watching(StaticWindow):
        def choose(self, state: WindowState) -> int:
            seen.append(state.judged)
            return super().choose(state)

    there.executor = there.new_executor(speculative=with_window(Watching))
    await asyncio.gather(*(answer(there, job("speculative", n)) for n in range(1, 5)))
    assert max(seen[:10]) > 0, "long before the first of them was over"
