"""Mode race: who starts, who wins, who is stopped, who goes on; and that the answer is the same whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.deployments.config.settings import AccountSettings
from tandem.deployments.modes.race.mode import Racing
from tandem.deployments.modes.race.router import RaceRouter
from tandem.deployments.request.job import Job, JobStats
from tandem.deployments.request.timeouts import Limits, Timeouts
from tandem.deployments.request.tokenlog import Origin
from tandem.engine.base import EngineStopped, HandedOver, NoCapacity, Sampling, ServiceRefused, Tokens
from tandem.engine.null.engine import NullEngine, NullSession
from tandem.policies.cost import PerToken
from tandem.policies.race.dispatch import BOTH, DEVICE_ONLY, SERVER_ONLY, DispatchState, Side, Start
from tandem.policies.race.migration import MigratePrepared, MigrationState
from tandem.policies.race.race import Race
from tests.deployments.faults import PROMPT, Failing, World, reference, with_race
from tests.virtual import in_virtual_time, now_s

pytestmark = pytest.mark.virtual_time

EXPECTED = reference(PROMPT, 24)


def _part(world: World) -> RaceRouter:
    part = world.router.modes["race"]
    assert isinstance(part, RaceRouter)
    return part


class Gate(NullEngine):
    """Gives its first token when told to. begun: sessions that wait for it or got it."""

    def __init__(self, opened: bool = True) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.begun = 0
        if opened:
            self.gate.set()

    class session_class(NullSession):
        _engine: Gate

        async def generate(self) -> AsyncGenerator[Tokens, None]:
            self._engine.begun += 1
            await self._engine.gate.wait()
            async with aclosing(super().generate()) as stream:
                async for tokens in stream:
                    yield tokens


class Planned:
    """A dispatch policy that says what it was told."""

    def __init__(self, start: Start) -> None:
        self.start = start

    def choose(self, state: DispatchState) -> Start:
        return self.start


class At:
    """A migration policy that hands over at these lengths of the answer, whatever it costs."""

    prepares = False

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths

    def wanted(self, state: MigrationState) -> bool:
        return True

    def due(self, state: MigrationState) -> bool:
        return state.known - len(PROMPT) in self.lengths


def race(
    server: NullEngine | Failing,
    device: NullEngine | Failing,
    start: Start = BOTH,
    at: Sequence[int] = (),
    limits: Limits | None = None,
    **settings: object,
) -> World:
    """A world whose races start and migrate as told, without a budget to heed. Either endpoint counts as the dearer one
    when asked."""
    return World(
        [server],
        [],
        {"phone": device},
        limits=limits,
        accounts=AccountSettings(**{"budget": 1.0, **settings}),
        race=with_race(lambda: Planned(start), lambda: At(at)),
    )


def job(max_tokens: int = 24, **wishes: object) -> Job:
    return Job(11, PROMPT, Sampling(max_tokens=max_tokens), mode="race", device="phone", **wishes)


async def answer(world: World, wanted: Job) -> tuple[list[int], list[Origin], JobStats]:
    ids: list[int] = []
    origins: list[Origin] = []
    stats = None
    async for delta in world.executor.run(wanted):
        ids += delta.ids
        origins += delta.origins
        stats = delta.stats
    assert stats is not None
    await world.executor.settled()
    for engine in world.engines.values():
        assert (await engine.stats()).sessions == 0, "nothing is left open"
    return ids, origins, stats


async def test_the_first_token_wins_and_the_other_one_stops():
    server, device = Gate(opened=False), Gate()
    ids, origins, stats = await answer(race(server, device), job())
    assert ids == EXPECTED
    assert set(origins) == {Origin.DEVICE}
    assert (stats.mode, stats.device, Racing.of(stats).migrations) == ("race", "phone", 0)
    assert server.begun == device.begun == 1
    counters = await server.stats()
    assert (counters.cancelled, counters.tokens_generated) == (1, 0), "it stopped computing"
    assert (stats.used.server_in, stats.used.server_out) == (len(PROMPT), 0)
    assert (stats.used.device_in, stats.used.device_out) == (len(PROMPT), 24)


async def test_the_account_learns_how_long_a_stopped_server_was_waited_for():
    """Otherwise only fast answers would count, and the server look faster than it is."""
    device = Gate(opened=False)
    with patch.object(Race, "stopped", autospec=True) as stopped:
        asyncio.get_running_loop().call_later(0.5, device.gate.set)
        _, origins, _ = await answer(race(Gate(opened=False), device), job())
    assert set(origins) == {Origin.DEVICE}
    told = [(call.args[1], call.args[2]) for call in stopped.call_args_list]
    assert told == [(Side.SERVER, pytest.approx(0.5))] * 2, "by the run, and then by the router"


@pytest.mark.parametrize(("start", "origin"), [(SERVER_ONLY, Origin.CLOUD), (DEVICE_ONLY, Origin.DEVICE)])
async def test_who_is_not_to_start_does_not(start: Start, origin: Origin):
    server, device = Gate(), Gate()
    _, origins, _ = await answer(race(server, device, start), job())
    assert set(origins) == {origin}
    assert (server.begun, device.begun) == ((1, 0) if origin is Origin.CLOUD else (0, 1))


async def test_the_device_starts_when_the_server_keeps_it_waiting():
    server, device = Gate(opened=False), Gate()
    _, origins, _ = await answer(race(server, device, Start(0.0, 0.01)), job())
    assert set(origins) == {Origin.DEVICE}
    assert server.begun == device.begun == 1


async def test_the_device_does_not_start_when_the_server_is_in_time():
    server, device = Gate(), Gate()
    await answer(race(server, device, Start(0.0, 30.0)), job())
    assert (server.begun, device.begun) == (1, 0)


ERRORS = [
    EngineStopped("gone"),
    NoCapacity("full"),
    HandedOver("room elsewhere"),
    ServiceRefused("no credit"),
]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("broken", ["server", "device"])
async def test_where_one_cannot_start_the_other_does_at_once(broken: str, error: Exception):
    bad = Failing(Gate(), "open", error=lambda: error)
    good = Gate()
    server, device = (bad, good) if broken == "server" else (good, bad)
    start = Start(0.0, 3600.0) if broken == "server" else Start(3600.0, 0.0)
    ids, _, stats = await answer(race(server, device, start), job())
    assert ids == EXPECTED
    assert bad.fired == 1
    assert stats.replans == 0


class BothWays(Race):
    """Costs with which the other endpoint is always the cheaper one."""

    def hand_over(self, side: Side, sent: int, now_s: float) -> bool:
        dear, cheap = PerToken(0.0, 1.0), PerToken(0.0, 0.0)
        self.prices = {other: dear if other is side else cheap for other in self.prices}
        return super().hand_over(side, sent, now_s)


@given(st.lists(st.integers(1, 23), max_size=6, unique=True), st.integers(1, 24))
def test_the_answer_is_the_same_wherever_it_is_handed_over(cuts: list[int], max_tokens: int):
    async def run() -> None:
        ids, origins, stats = await answer(race(Gate(), Gate(), SERVER_ONLY, cuts), job(max_tokens))
        assert ids == EXPECTED[:max_tokens]
        here, expected = Origin.CLOUD, []
        for position in range(max_tokens):
            if position in cuts:
                here = Origin.DEVICE if here is Origin.CLOUD else Origin.CLOUD
            expected.append(here)
        assert origins == expected
        assert Racing.of(stats).migrations == sum(cut < max_tokens for cut in cuts)

    with patch("tandem.deployments.modes.race.mode.Race", BothWays):
        asyncio.run(run())


@pytest.mark.parametrize("operation", ["open", "generate"])
async def test_if_the_target_fails_the_source_goes_on(operation: str):
    device = Failing(Gate(), operation)
    world = race(Gate(), device, SERVER_ONLY, [5, 9])
    ids, origins, stats = await answer(world, job())
    assert ids == EXPECTED
    assert device.fired == 1
    assert set(origins) == {Origin.CLOUD}
    seen = Racing.of(stats)
    assert (seen.migrations, seen.migrations_failed, stats.replans) == (0, 1, 0)


@pytest.mark.parametrize("after", [0, 1, 7, 23])
@pytest.mark.parametrize("broken", ["server", "device"])
async def test_if_the_source_dies_the_other_one_goes_on(broken: str, after: int):
    bad = Failing(Gate(), "generate", after=after)
    good = Gate()
    server, device = (bad, good) if broken == "server" else (good, bad)
    world = race(server, device, SERVER_ONLY if broken == "server" else DEVICE_ONLY)
    ids, _, stats = await answer(world, job())
    assert ids == EXPECTED
    assert bad.fired == 1
    assert (Racing.of(stats).failovers, stats.replans) == (1, 0)
    assert [endpoint.device for endpoint in world.gone] == [broken == "device"], "others shall avoid it"


@pytest.mark.parametrize("stalling", ["server", "device"])
async def test_who_stalls_before_its_first_token_is_not_waited_for_longer_than_it_deserves(stalling: str):
    """The general timeout is a minute; the expected time is far below a second."""
    stalled, good = Gate(opened=False), Gate()
    server, device = (stalled, good) if stalling == "server" else (good, stalled)
    start = SERVER_ONLY if stalling == "server" else DEVICE_ONLY
    world = race(server, device, start, limits=Limits(timeouts=Timeouts(first_s=60, step_s=60)))
    (verifier,) = world.snapshot.pools["verifier"]
    _part(world).rivals.of(verifier, verifier).ttft.note(0.001)
    async with asyncio.timeout(20):
        ids, _, stats = await answer(world, job())
    assert ids == EXPECTED
    assert (stalled.begun, good.begun, Racing.of(stats).failovers) == (1, 1, 1)


NO_BUDGET = {"server": {"budget": 0.0, "exchange_rate": 0.0}, "device": {"budget": 0.0, "exchange_rate": 1.0}}
"""Budgets by the endpoint that is constrained."""


@pytest.mark.parametrize("constrained", ["server", "device"])
@in_virtual_time
async def test_without_a_budget_a_stall_is_waited_for_and_a_failure_is_not(constrained: str):
    """The other endpoint gives its first token after 50 s, for which it has 60; then it dies."""
    stalled, good = Gate(opened=False), Gate()
    failing = Failing(stalled, "generate", after=2)
    server, device = (good, failing) if constrained == "server" else (failing, good)
    limits = Limits(timeouts=Timeouts(first_s=60, step_s=60))
    world = race(server, device, BOTH, limits=limits, **NO_BUDGET[constrained])
    (verifier,) = world.snapshot.pools["verifier"]
    _part(world).rivals.of(verifier, verifier).ttft.note(0.001)
    asyncio.get_running_loop().call_later(50, stalled.gate.set)
    begun = []
    asyncio.get_running_loop().call_later(49, lambda: begun.append(good.begun))
    ids, origins, stats = await answer(world, job())
    assert (ids, begun, good.begun) == (EXPECTED, [0], 1)
    other, own = (Origin.DEVICE, Origin.CLOUD) if constrained == "server" else (Origin.CLOUD, Origin.DEVICE)
    assert origins == [other] * 2 + [own] * 22
    assert (failing.fired, Racing.of(stats).failovers, now_s()) == (1, 1, pytest.approx(50, abs=1))


@pytest.mark.parametrize("constrained", ["server", "device"])
async def test_without_a_budget_a_full_endpoint_is_no_reason_to_pay_for_the_other(constrained: str):
    full, good = Failing(Gate(), "open", error=lambda: NoCapacity("full", 7.0)), Gate()
    server, device = (good, full) if constrained == "server" else (full, good)
    world = race(server, device, BOTH, **NO_BUDGET[constrained])
    with pytest.raises(NoCapacity, match="full; the budget is spent") as refused:
        await answer(world, job())
    assert (refused.value.retry_after_s, full.fired, good.begun) == (7.0, 1, 0)
    budgets = _part(world).accounts[""].budgets
    assert [budgets[Side(constrained)].spent, budgets[Side(constrained)].tokens] == [0, len(PROMPT)]


async def test_a_hand_over_to_one_that_stalls_is_given_up():
    device = Gate(opened=False)
    world = race(Gate(), device, SERVER_ONLY, [5], limits=Limits(timeouts=Timeouts(first_s=60, step_s=60)))
    wanted = Job(11, PROMPT, Sampling(max_tokens=24, reader_rate=50), mode="race", device="phone")
    async with asyncio.timeout(20):
        ids, origins, stats = await answer(world, wanted)
    assert (ids, set(origins), device.begun) == (EXPECTED, {Origin.CLOUD}, 1)
    seen = Racing.of(stats)
    assert (seen.migrations, seen.migrations_failed, stats.replans) == (0, 1, 0)


async def test_a_source_that_stalls_is_left():
    class Stalling(Gate):
        stalled: bool

        class session_class(Gate.session_class):
            _engine: Stalling

            async def generate(self) -> AsyncGenerator[Tokens, None]:
                async for tokens in super().generate():
                    yield tokens
                    self._engine.stalled = True
                    await asyncio.Event().wait()

    server, device = Stalling(), Gate()
    limits = Limits(timeouts=Timeouts(connect_s=1, open_s=1, first_s=1, step_s=0.05))
    ids, origins, stats = await answer(race(server, device, SERVER_ONLY, limits=limits), job())
    assert ids == EXPECTED
    assert server.stalled
    assert origins == [Origin.CLOUD] + [Origin.DEVICE] * 23
    assert Racing.of(stats).failovers == 1


FREE_DEVICE = {"price_in": 1e6, "price_out": 2e6, "exchange_rate": 0.0}


async def opened_after(
    world: World, device: Gate, tokens: int, pause_s: float = 0.01
) -> tuple[list[int], JobStats]:
    """The answer, of which the device gives its first token only after so many; and its stats.

    pause_s: for which nobody takes the answer in then.
    """
    ids, stats = [], None
    async for delta in world.executor.run(job()):
        ids += delta.ids
        stats = delta.stats
        if len(ids) == tokens:
            device.gate.set()
            await asyncio.sleep(pause_s)
    assert stats is not None
    await world.executor.settled()
    for engine in world.engines.values():
        assert (await engine.stats()).sessions == 0, "nothing is left open"
    return ids, stats


@pytest.mark.parametrize(("opened", "pause_s"), [(2, 0.01), (8, 0.0)])
async def test_a_loser_holds_the_prompt_where_the_answer_will_go(opened: int, pause_s: float):
    """Before the hand-over or with it, the device has taken the prompt in: then it takes in what was sent."""
    server, device = Gate(), Gate(opened=False)
    world = race(
        server, device, BOTH, [8 - len(PROMPT)], **FREE_DEVICE
    )  # of eight tokens it knows the prompt
    ids, stats = await opened_after(world, device, opened, pause_s)
    assert ids == EXPECTED
    seen = Racing.of(stats)
    assert (seen.kept, seen.migrations, seen.migrations_failed) == (1, 1, 0)
    counters = await device.stats()
    assert (counters.opened, device.begun) == (1, 2), "one session, that goes on"
    assert stats.used.device_in == len(PROMPT) + 8
    assert stats.by_origin == {"cloud": 8, "device": 16}


@in_virtual_time
async def test_a_target_that_did_not_race_prepares_while_the_source_rests():
    """The server gives 20 tokens/s to a reader of 5; the device takes the prompt in for a second, and holds it then."""
    device = Gate(opened=False)
    world = race(NullEngine(20), device, SERVER_ONLY, **FREE_DEVICE)
    _part(world).follow(with_race(lambda: Planned(SERVER_ONLY), MigratePrepared))
    for request in (11, 12):  # the first one teaches how long it takes
        device.gate.clear()
        asyncio.get_running_loop().call_later(1.0, device.gate.set)
        wanted = Job(request, PROMPT, Sampling(max_tokens=24, reader_rate=5), mode="race", device="phone")
        times_s: list[float] = []
        ids, stats = [], None
        async for delta in world.executor.run(wanted):
            ids += delta.ids
            times_s += [now_s()] * len(delta.ids)
            stats = delta.stats
        await world.executor.settled()
    assert stats is not None
    assert ids == EXPECTED
    seen = Racing.of(stats)
    assert (seen.kept, seen.prepared, seen.migrations, seen.migrations_failed) == (0, 1, 1, 0)
    sent = stats.by_origin["cloud"]
    assert sent < 14, "in a second it could have given 20, and its reader has read 5"
    assert stats.used.device_in == len(PROMPT) + 1 + sent, "the prompt once"
    assert all(at_s <= times_s[0] + i / 5 + 1e-6 for i, at_s in enumerate(times_s)), "the reader never waited"
    assert (await device.stats()).opened == 2, "one session for each answer"


async def test_a_loser_whose_decoding_is_dearer_is_stopped():
    device = Gate(opened=False)
    _, _, stats = await answer(race(Gate(), device, BOTH, exchange_rate=1.0), job())
    assert (Racing.of(stats).kept, (await device.stats()).cancelled) == (0, 1)


async def test_a_loser_in_another_vocabulary_is_stopped():
    """The loser would prefill the log anew, with the prompt."""
    device = Gate(opened=False)
    world = race(Gate(), device, BOTH, [5], **FREE_DEVICE)
    (record,) = world.snapshot.devices.values()
    other = {"phone": msgspec.structs.replace(record, vocabulary="another")}
    world.snapshot = replace(world.snapshot, devices=other)
    world.router.see(world.snapshot)
    _, stats = await opened_after(world, device, 2)
    assert Racing.of(stats).kept == 0


async def test_a_loser_that_fails_while_it_holds_the_prompt_is_done_without():
    gate = Gate(opened=False)
    device = Failing(gate, "generate")
    world = race(Gate(), device, BOTH, [5], **FREE_DEVICE)
    ids, stats = await opened_after(world, gate, 2)
    assert ids == EXPECTED
    seen = Racing.of(stats)
    assert (device.fired, seen.kept, seen.migrations, stats.replans) == (1, 1, 0, 0)


async def test_whoever_holds_the_prompt_goes_on_where_the_source_fails():
    server, device = Failing(Gate(), "generate", after=4), Gate(opened=False)
    world = race(server, device, BOTH, **FREE_DEVICE)
    ids, stats = await opened_after(world, device, 2)
    assert ids == EXPECTED
    assert (server.fired, Racing.of(stats).failovers, stats.replans) == (1, 1, 0)
    assert (await device.stats()).opened == 1


async def test_if_both_die_the_executor_starts_anew():
    server, device = Failing(Gate(), "generate", after=3), Failing(Gate(), "open")
    world = race(server, device, SERVER_ONLY)
    world.list_pool("verifier", *world.snapshot.pools["verifier"], world.add("verifier", 1, Gate()))
    ids, _, stats = await answer(world, job())
    assert ids == EXPECTED
    assert (server.fired, device.fired) == (1, 1)
    assert stats.replans >= 1


async def test_without_a_server_the_device_answers_alone():
    world = race(Gate(), Gate())
    world.list_pool("verifier")
    ids, origins, stats = await answer(world, job())
    assert ids == EXPECTED
    assert (stats.mode, set(origins)) == ("device", {Origin.DEVICE})


async def test_a_race_picks_among_the_devices_of_a_user():
    world = World([Gate()], [], {"phone": Gate(), "laptop": Gate(), "else's": Gate()})
    wanted = Job(11, PROMPT, Sampling(max_tokens=4), mode="race", device=("laptop", "gone"))
    _, _, stats = await answer(world, wanted)
    assert stats.device == "laptop"


async def test_tokens_are_paid_for():
    world = race(Gate(), Gate(), SERVER_ONLY, [5], price_in=1e6, price_out=2e6, exchange_rate=0.25)
    _, _, stats = await answer(world, job(account="me"))
    known = len(PROMPT) + 5
    assert (stats.used.server_in, stats.used.device_in) == (len(PROMPT), known)
    assert stats.used.server_out + stats.used.device_out >= 24
    assert stats.joules == known + 2 * stats.used.device_out
    server_usd = len(PROMPT) + 2 * stats.used.server_out
    assert stats.usd == pytest.approx(server_usd + 0.25 * stats.joules)
    (bill,) = world.books.statement("me", 0.0).devices.values()
    assert (bill.requests, bill.server_usd_in, bill.server_usd) == (1, len(PROMPT), server_usd)
    assert bill.joules == stats.joules
    assert bill.device_usd == pytest.approx(0.25 * stats.joules)


async def test_a_client_that_leaves_pays_for_what_it_had():
    world = race(Gate(), Gate(), SERVER_ONLY)
    stream = world.executor.run(job(account="me"))
    await anext(stream)
    await stream.aclose()
    await world.executor.settled()
    bill = world.bill("me")
    assert bill.requests == 1
    assert bill.used.server_in == len(PROMPT)
    assert bill.used.server_out >= 1


@pytest.mark.parametrize("rate", [1e-12, 1e3])  # the server is constrained, or the device is
@pytest.mark.parametrize("share", [0.25, 0.7])
async def test_the_budget_is_kept(rate: float, share: float):
    servers = [NullEngine(tokens_per_s) for tokens_per_s in (20, 50, 70, 110, 130)]
    world = World(servers, [], {"phone": NullEngine(60)}, accounts=AccountSettings(exchange_rate=rate))
    for i in range(400):
        prompt = tuple(range(5, 8 + i * 7 % 90))
        await answer(
            world, Job(i + 1, prompt, Sampling(max_tokens=2), mode="race", account="me", budget=share)
        )
    budgets = _part(world).accounts["me"].budgets
    used = {str(constrained): budget for constrained, budget in budgets.items() if budget.tokens}
    ((constrained, budget),) = used.items()
    assert constrained == ("server" if rate < 1 else "device")
    assert budget.spent / budget.tokens == pytest.approx(share, abs=0.02)
