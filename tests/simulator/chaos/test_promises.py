"""Deterministic faults: promises hold whatever happens, a seed replays to the byte, and a broken promise is seen."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from math import inf

import pytest

from tandem.deployments.access.client.bill_sender import BillSender
from tandem.deployments.access.key_service import KeyService
from tandem.deployments.access.quota import Standing
from tandem.deployments.access.store import BillBatch
from tandem.deployments.admission.limits import Quotas
from tandem.deployments.config.settings import LimitSettings
from tandem.deployments.modes.speculative.mode import SpeculativeMode
from tandem.deployments.modes.speculative.observer import Observer
from tandem.deployments.request.assignment import Unavailable
from tandem.deployments.request.session import EndpointSession
from tandem.deployments.request.timeouts import Limits, Timeouts
from tandem.engine.core.kvcache import BlockPool
from tandem.policies.estimators.overdue import StepLimit
from tandem.policies.race.budget import Booking, Budget
from tandem.policies.race.race import Race
from tandem.policies.reader.stall_timeout import FLOOR_S, PROBE_S, Patience
from tandem.simulator.chaos import ChaosOutcome, Fault, dialled, play, promises
from tandem.simulator.chaos.promises import promised_s
from tandem.simulator.chaos.saboteur import FragileWorld, Saboteur
from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.runs.run import Clients
from tandem.simulator.workload import Request
from tandem.simulator.world.network import RESUME_S, SILENCE_S, LinkedSession, Path
from tests.effort import tried
from tests.simulator.configurations import TARGET, config, split

BROKE_ONCE = (229, 561, 703, 906, 1375, 1480, 2504, 2593, 2944, 3475, 4101, 5567)
SABOTAGED = (2000, 2002, 2003, 2004, 2007, 2031, 2050)
LOST_MIDDLE = 2040
SEEDS = (*SABOTAGED, *BROKE_ONCE, LOST_MIDDLE, *tried((1008, 1013), range(1000, 1015)))
MORE_SEEDS = range(1015, 1075)
BLIND_SEEDS = range(2000, 2040)
KINDS = {
    "kill", "restart", "cut", "stall", "late", "router", "scheduler", "drain", "leave", "drafter", "silence",
    "away", "access", "takeover", "hang", "middle", "frozen", *dialled.KINDS,
}  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # see `breaks`
in_one_process = pytest.mark.xdist_group("chaos")  # which plays `outcomes` once


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Every fault is logged."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def outcomes() -> list[ChaosOutcome]:
    """Return what becomes of SEEDS without sabotage."""
    return [play(seed) for seed in SEEDS]


def check_promises(outcomes: Iterable[ChaosOutcome]) -> None:
    assert not {outcome.seed: outcome.broken for outcome in outcomes if outcome.broken}


@in_one_process
def test_promises_hold(outcomes: list[ChaosOutcome]) -> None:
    check_promises(outcomes)


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
    """Whether the sabotage of a test is seen to break it: with a seed that once did, or, should what is drawn from
    seeds have changed since, with any of some. Nothing is broken without the sabotage."""
    for played in (seed, *BLIND_SEEDS):
        broken = "\n".join(play(played).broken)
        gc.collect()  # what hangs there has no other end, and complains of it here
        if promise in broken:
            return True
    return False


def test_a_deadlock_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions whose end is waited for in vain."""

    async def close(session: EndpointSession) -> None:
        await session.close()
        await asyncio.Event().wait()

    monkeypatch.setattr("tandem.deployments.modes.executor._close", close)
    assert breaks("deadlock", 2002)


def test_blocks_that_nobody_gives_back_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockPool, "release", lambda pool, table: None)
    assert breaks("blocks in use", 2004)


def test_tasks_that_nobody_ends_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asks_for_ever(observer: Observer) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Observer, "_ask_target", asks_for_ever)
    monkeypatch.setattr(Observer, "stop", lambda observer: None)
    assert breaks("tasks are left: _asked", 2005)


def test_reservations_without_a_limit_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Budget.book

    def unlimited(budget: Budget, tokens: int, planned: bool, share: float | None, beyond: int) -> Booking:
        return book(budget, tokens, planned, 1.0, beyond)

    monkeypatch.setattr(Budget, "book", unlimited)
    assert breaks("is overspent", 2031)


def test_limits_that_nobody_heeds_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other endpoint stalls or is full."""
    monkeypatch.setattr(Race, "may_start", lambda race, side, sent: True)
    assert breaks("was to take in 0 tokens", 2031)


def test_answers_that_nobody_goes_on_with_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitSettings, "limits", lambda settings: Limits(replans=0, assign_s=1e-9))
    assert breaks("did not come whole", 2003)


def test_readers_who_are_kept_waiting_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that faults do cause, held against a promise that nobody made."""
    monkeypatch.setattr(promises, "promised_s", lambda limits, wait_s: 2.0)
    assert breaks("waited", 2002)


def test_endpoints_that_are_given_up_too_late_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe_s = Patience.probe_s
    monkeypatch.setattr(Patience, "probe_s", lambda *known: 4 * probe_s(*known))
    monkeypatch.setattr("tandem.deployments.request.probes.PROBE_S", 4 * PROBE_S)
    monkeypatch.setattr("tandem.policies.reader.stall_timeout.FLOOR_S", 4 * FLOOR_S)
    assert breaks("was kept waiting", 2085)


def test_answers_that_wait_for_a_drafter_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    roles = [replace(role, if_absent="") for role in SpeculativeMode.roles]
    monkeypatch.setattr(SpeculativeMode, "roles", roles)
    assert breaks("was kept waiting", 541)


def test_answers_that_wait_too_long_for_another_middle_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that is needed, held against a promise that nobody made."""
    monkeypatch.setattr(promises, "MIDDLE_S", {"middle": 0.05})
    assert breaks("found no other middle in time", 1211)


def test_engines_that_hang_unnoticed_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepLimit, "limit_s", lambda limit, expected_s: inf)
    assert breaks("was kept waiting", 2007)


def test_sessions_that_do_not_outlive_an_absence_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disconnected device takes the cloud for late."""
    monkeypatch.setattr(Path, "reached_s", property(lambda path: -inf, lambda path, at: None), raising=False)
    assert breaks("was not resumed", 2042)


def test_a_gate_that_forgets_what_its_predecessor_let_in_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.deployments.admission.controller.LEARNING_S", 0.0)
    assert breaks("answers at once, and may have", 4)


def test_dollars_that_nobody_reserves_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quotas, "_reserve", lambda quotas, entry, limits, now_s: None)
    assert breaks("has spent", 2097)


def test_bills_that_nobody_sends_again_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def once(sender: BillSender, batch: BillBatch) -> Mapping[str, Standing]:
        with suppress(Unavailable):
            return await asyncio.wait_for(sender._send(batch), 0.5)
        return {}

    monkeypatch.setattr(BillSender, "_send_until_booked", once)
    assert breaks("are due", 2008)


def test_bills_that_are_booked_twice_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch looks new to the ledger and to the key service."""
    number = count(1)

    def charge(service: KeyService, batch: BillBatch) -> None:
        real(service, batch._replace(number=next(number)))

    real = KeyService.charge
    monkeypatch.setattr(KeyService, "charge", charge)
    assert breaks("are due", 2038)


def test_sessions_that_nobody_ends_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(session: LinkedSession) -> None:
        pass

    monkeypatch.setattr(LinkedSession, "cancel", forget)
    assert breaks("is left with", 2004)
