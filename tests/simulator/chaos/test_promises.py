"""Deterministic faults: promises hold whatever happens, a seed replays to the byte, and a reader who waits is seen.

What is seen of faults in the code itself is tested with the benchmark that puts them there.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

import pytest

from tandem.deployments.request.timeouts import Limits, Timeouts
from tandem.simulator.chaos import ChaosOutcome, Fault, dialled, play, promises
from tandem.simulator.chaos.promises import promised_s
from tandem.simulator.chaos.saboteur import FragileWorld, Saboteur
from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.runs.run import Clients
from tandem.simulator.workload import Request
from tandem.simulator.world.network import RESUME_S, SILENCE_S
from tests.effort import tried
from tests.simulator.configurations import TARGET, config, split

BROKE_ONCE = (229, 561, 626, 703, 906, 1375, 1399, 1480, 2504, 2593, 2944, 3475, 4101, 5567)
SABOTAGED = (2000, 2002, 2003, 2004, 2007, 2031, 2050)
LOST_MIDDLE = 2040
SEEDS = (*SABOTAGED, *BROKE_ONCE, LOST_MIDDLE, *tried((1008, 1013), range(1000, 1015)))
MORE_SEEDS = range(1015, 1075)
BLIND_SEEDS = range(2000, 2040)
KINDS = {
    "kill", "restart", "cut", "stall", "late", "router", "scheduler", "drain", "leave", "drafter", "silence",
    "away", "access", "takeover", "hang", "middle", "frozen", *dialled.KINDS,
}  # fmt: skip

in_one_process = pytest.mark.xdist_group("chaos")  # which plays every seed once


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Every fault is logged."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


played = cache(play)


@pytest.fixture
def outcomes() -> list[ChaosOutcome]:
    """Return what becomes of SEEDS without sabotage."""
    return [played(seed) for seed in SEEDS]


def check_promises(outcomes: Iterable[ChaosOutcome]) -> None:
    assert not {outcome.seed: outcome.broken for outcome in outcomes if outcome.broken}


@in_one_process
@pytest.mark.parametrize("seed", SEEDS)
def test_promises_hold(seed: int) -> None:
    check_promises([played(seed)])


@pytest.mark.slow
@pytest.mark.parametrize("first", MORE_SEEDS[::20])
def test_promises_hold_with_more_seeds(first: int) -> None:
    check_promises(map(play, range(first, first + 20)))


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(10))
def test_promises_hold_with_new_seeds(part: int) -> None:
    first = secrets.randbelow(10**9)
    check_promises(map(play, range(first, first + 300)))


@in_one_process
def test_every_kind_of_fault_happens(outcomes: list[ChaosOutcome]) -> None:
    happened = Counter(fault.kind for outcome in outcomes for fault in outcome.faults)
    assert set(happened) == KINDS


@in_one_process
def test_few_requests_are_refused(outcomes: list[ChaosOutcome]) -> None:
    assert sum(o.refused for o in outcomes) < 0.1 * sum(len(o.answers) for o in outcomes)


@in_one_process
def test_endpoints_are_full_at_times(outcomes: list[ChaosOutcome]) -> None:
    assert any(answer.failure == "overloaded" for outcome in outcomes for answer in outcome.answers)


def test_a_fault_without_effect_has_not_happened() -> None:
    """Broken or missing victims cannot break."""
    world = FragileWorld(config(targets=[{**TARGET, "count": 2, "call_s": 0.001}]))
    saboteur = Saboteur(world)

    async def main() -> None:
        for kind in ("router", "router", "cut", "stall", "leave", "drafter", "silence", "silence"):
            saboteur.begin(Fault(0.0, kind, 0, 4.0))
        await asyncio.sleep(0)
        for server in world.servers:
            await server.kill()
        for kind in ("late", "kill", "drain"):
            saboteur.begin(Fault(0.0, kind, 0, 4.0))
        await saboteur.end()

    world.loop.run(main())
    assert [fault.kind for fault in saboteur.done] == ["router", "cut", "silence"]


def away(seconds: float, at_s: float = 1.0) -> tuple[SimulatedAnswer, ChaosOutcome, FragileWorld]:
    """An answer in mode split, whose device is away for so long in the middle of it."""
    world = FragileWorld(config(**split(), history=True))
    clients, saboteur = Clients(world, lambda _: None), Saboteur(world)
    fault = Fault(at_s, "away", 0, seconds)

    async def main() -> None:
        world.loop.call_at(at_s, saboteur.begin, fault)
        await clients.run([Request(0.0, 40, 100, bytes([1, 1, 0, 1] * 25), device=0)])
        await saboteur.end()

    world.loop.run(main())
    (answer,) = clients.answers
    outcome = ChaosOutcome(0, faults=saboteur.done, answers=clients.answers)
    promises.check(outcome, world)
    return answer, outcome, world


def test_a_device_that_comes_back_in_time_goes_on_where_it_was() -> None:
    alone, _, _ = away(1.0, at_s=1e3)
    for seconds in (1.0, 0.9 * RESUME_S):
        answer, outcome, _ = away(seconds)
        assert [fault.kind for fault in outcome.faults] == ["away"], "it has happened"
        assert not outcome.broken
        assert answer.times_s is not None
        assert answer.times_s[0] < 1.0 < 1.0 + seconds <= answer.times_s[-1], "in mid-answer"
        assert promises._longest_gap_s(answer) >= seconds - 0.1
        assert answer.ids == alone.ids
        assert answer.stats is not None
        assert answer.stats.replans == 0


def test_a_device_that_stays_away_for_longer_loses_its_session() -> None:
    answer, outcome, _ = away(RESUME_S + 5.0)
    assert answer.failure is not None or answer.stats is None or answer.stats.replans > 0
    assert "was not resumed" in "\n".join(outcome.broken)


def test_nobody_leaves_in_the_middle_of_nothing() -> None:
    _, outcome, _ = away(1.0, at_s=1e3)
    assert not outcome.faults


@pytest.mark.parametrize(("kind", "within_s"), promises.MIDDLE_S.items())
def test_a_lost_middle_costs_a_replay_at_another(kind: str, within_s: float) -> None:
    """One is killed, or stopped, in the middle of an answer."""
    changes = split()
    changes["targets"] = [changes["targets"][0] | {"count": 2, "call_s": 0.001}]
    world = FragileWorld(config(**changes, history=True))
    clients, saboteur = Clients(world, lambda _: None), Saboteur(world)

    async def main() -> None:
        world.loop.call_at(1.0, saboteur.begin, Fault(1.0, kind, 0, 3 * SILENCE_S))
        await clients.run([Request(0.0, 40, 100, bytes([1, 1, 0, 1] * 25), device=0)])
        await saboteur.end()
        await asyncio.sleep(2 * SILENCE_S)

    world.loop.run(main())
    (answer,) = clients.answers
    outcome = ChaosOutcome(0, faults=saboteur.done, answers=clients.answers)
    promises.check(outcome, world)
    assert [fault.kind for fault in outcome.faults] == [kind], "it has happened"
    assert not outcome.broken
    assert answer.times_s is not None
    assert answer.times_s[0] < 1.0 < answer.times_s[-1], "in mid-answer"
    assert answer.stats is not None
    assert answer.stats.replans == 1
    assert 0.05 < promises._longest_gap_s(answer) < within_s


def test_a_middle_is_lost_only_where_it_computes_for_somebody() -> None:
    world = FragileWorld(config(**split()))
    saboteur = Saboteur(world)

    async def main() -> None:
        for kind in promises.MIDDLE_S:
            saboteur.begin(Fault(0.0, kind, 0, 1.0))
        await saboteur.end()

    world.loop.run(main())
    assert not saboteur.done


def test_the_end_is_waited_for_as_well() -> None:
    answer = SimulatedAnswer(Request(1.0, 5, 5), 1.0, -1, keep_history=True)
    answer.ended_s = 8.0
    assert promises._longest_gap_s(answer) == 7.0
    answer.times_s = array("d", [2.0, 2.5])
    assert promises._longest_gap_s(answer) == 5.5


def test_a_successor_has_as_long_as_anybody_for_its_first_token() -> None:
    """An endpoint admits the request and says nothing; another one comes up at last, and begins at last."""
    limits = Limits(timeouts=Timeouts(connect_s=1.0, open_s=2.0, first_s=100.0, step_s=30.0))
    assert promised_s(limits, wait_s=10.0) == 103.0 + 10.0 + 103.0


def seen(outcome: ChaosOutcome) -> list[tuple[object, ...]]:
    """Return everything that clients see of a run, to the last bit."""
    return [
        (a.number, a.finish, a.failure, tuple(a.ids or ()), tuple(a.times_s or ())) for a in outcome.answers
    ]


@in_one_process
def test_a_seed_replays_to_the_byte(outcomes: list[ChaosOutcome]) -> None:
    first, *others = outcomes
    assert seen(first) not in [seen(other) for other in others]
    again = outcomes[-tried(1, 3) :]
    assert [seen(play(outcome.seed)) for outcome in again] == [seen(outcome) for outcome in again]


def breaks(promise: str, seed: int) -> bool:
    """Return whether a promise is seen to be broken with a seed that once broke it, or, should what is drawn from seeds
    have changed since, with any of some."""
    return any(promise in "\n".join(play(each).broken) for each in (seed, *BLIND_SEEDS))


def test_readers_who_are_kept_waiting_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that faults do cause, held against a promise that nobody made."""
    monkeypatch.setattr(promises, "promised_s", lambda limits, wait_s: 2.0)
    assert breaks("waited", 2002)


def test_answers_that_wait_too_long_for_another_middle_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that is needed, held against a promise that nobody made."""
    monkeypatch.setattr(promises, "MIDDLE_S", {"middle": 0.05})
    assert breaks("found no other middle in time", 1211)
