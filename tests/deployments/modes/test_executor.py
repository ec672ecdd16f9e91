"""The executor: exactly once and in order, through every loss of an endpoint, and nothing left behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from tandem.deployments.modes.executor import VACATE_S, Executor
from tandem.deployments.request.assignment import Assignment, RoutingRequest
from tandem.deployments.request.job import Job, JobStats, NoSuchDevice, UnknownMode
from tandem.deployments.request.session import Reach
from tandem.deployments.request.timeouts import Limits, Timeouts
from tandem.deployments.routing.assigner import RETRY_LOST_S
from tandem.engine.base import (
    ContextOverflow,
    EngineError,
    EngineStats,
    EngineStopped,
    HandedOver,
    NoCapacity,
    Sampling,
    ServiceRefused,
    Tokens,
    UnknownSession,
)
from tandem.engine.null.engine import NullEngine, NullSession
from tandem.policies.reader.stall_timeout import PROBE_S, QUIET_S
from tests.deployments.faults import PROMPT, Failing, World, reference

pytestmark = pytest.mark.virtual_time

EXPECTED = reference(PROMPT, 24)


def job(mode: str | None = None, device: str | None = None, max_tokens: int = 24) -> Job:
    return Job(11, PROMPT, Sampling(max_tokens=max_tokens), mode=mode, device=device)


async def answer(world: World, wanted: Job) -> tuple[list[int], JobStats]:
    ids: list[int] = []
    stats = finish = None
    async for delta in world.executor.run(wanted):
        assert len(delta.ids) == len(delta.origins)
        assert finish is None, "nothing follows the last delta"
        ids += delta.ids
        stats, finish = delta.stats, delta.finish
    assert stats is not None
    return ids, stats


async def test_it_says_who_works_for_whom() -> None:
    world = World([NullEngine(50)], [], {"phone": NullEngine(50)})
    async with aclosing(world.executor.run(job("device", "phone"))) as deltas:
        assert world.executor.under_way() == []
        await anext(deltas)
        (found,) = world.executor.under_way()
        assert (found.request, found.mode, found.tokens, found.origin) == (11, "device", 1, "device")
        assert list(found.endpoints.values()) == ["phone"]
    assert world.executor.under_way() == []


async def left_open(world: World) -> int:
    await world.executor.settled()
    return sum([(await engine.stats()).sessions for engine in world.engines.values()])


@pytest.mark.parametrize(
    ("mode", "device", "served"),
    [
        ("cloud", None, ("cloud", None)),
        ("device", "phone", ("device", "phone")),
        ("device", None, ("device", "phone")),
        ("speculative", "phone", ("speculative", "phone")),
        ("speculative", None, ("speculative", None)),
        (None, "any", ("speculative", "phone")),
        (None, None, ("cloud", None)),
    ],
)
async def test_every_mode_gives_the_same_tokens(
    mode: str | None, device: str | None, served: tuple[str, str | None]
) -> None:
    world = World(
        [NullEngine(50)], [NullEngine(50, mistake_every=5)], {"phone": NullEngine(50, mistake_every=3)}
    )
    ids, stats = await answer(world, job(mode, device))
    assert ids == EXPECTED
    assert (stats.mode, stats.device) == served
    assert stats.tokens == sum(stats.by_origin.values()) == 24
    assert 0 < stats.ttft_s <= stats.total_s
    assert {"assign", "open"} < set(stats.stages_s)
    assert await left_open(world) == 0


FAULTS = [
    pytest.param(lambda: EngineStopped("gone"), id="stopped"),
    pytest.param(lambda: UnknownSession("restarted"), id="restarted"),
    pytest.param(lambda: ConnectionResetError("reset"), id="reset"),
]


@pytest.mark.parametrize("error", FAULTS)
@pytest.mark.parametrize("after", [0, 1, 9, 23])
async def test_a_device_dies_and_the_cloud_goes_on(after: int, error: type[Exception]) -> None:
    phone = Failing(NullEngine(), "generate", after, error)
    world = World([NullEngine()], devices={"phone": phone})
    ids, stats = await answer(world, job("device", "phone"))
    assert phone.fired == 1
    assert ids == EXPECTED
    assert (stats.replans, stats.mode) == (1, "cloud")
    assert stats.by_origin == {o: n for o, n in (("device", after), ("cloud", 24 - after)) if n}
    assert await left_open(world) == 0


@pytest.mark.parametrize("operation", ["open", "draft"])
@pytest.mark.parametrize("device", ["phone", None])
async def test_a_drafter_dies_and_the_cloud_goes_on(device: str | None, operation: str) -> None:
    failing = Failing(NullEngine(), operation, 2 if operation == "draft" else 0)
    world = World([NullEngine()], [failing], {"phone": failing})
    ids, stats = await answer(world, job("speculative", device))
    assert failing.fired == 1
    assert ids == EXPECTED
    assert (stats.replans, stats.mode) == (1, "cloud")
    assert await left_open(world) == 0


@pytest.mark.parametrize("refusal", [NoCapacity("full"), ContextOverflow("small"), EngineError("odd")])
async def test_a_drafter_that_refuses_is_done_without(refusal: Exception) -> None:
    failing = Failing(NullEngine(), "open", 0, lambda: refusal)
    ids, stats = await answer(World([NullEngine()], [failing]), job("speculative"))
    assert (failing.fired, ids, stats.mode) == (1, EXPECTED, "cloud")


@pytest.mark.parametrize("operation", ["open", "verify", "generate"])
@pytest.mark.parametrize("after", [0, 3])
async def test_a_verifier_dies_and_another_goes_on(operation: str, after: int) -> None:
    mode = "speculative" if operation == "verify" else "cloud"
    after = 0 if operation == "open" else after
    failing = Failing(NullEngine(), operation, after)
    world = World([failing, NullEngine()], [NullEngine(mistake_every=4)])
    ids, stats = await answer(world, job(mode))
    assert failing.fired == 1
    assert ids == EXPECTED
    assert (stats.replans, stats.mode) == (1, mode)
    assert await left_open(world) == 0


async def test_a_silent_device_counts_as_lost() -> None:
    phone = NullEngine(tokens_per_s=0.1)
    limits = Limits(timeouts=Timeouts(connect_s=1, open_s=1, first_s=0.05, step_s=0.05))
    world = World([NullEngine()], devices={"phone": phone}, limits=limits)
    ids, stats = await answer(world, job("device", "phone"))
    assert (ids, stats.replans) == (EXPECTED, 1)
    assert await left_open(world) == 0


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (EngineStopped("gone"), "lost", "the drafter was lost"),
        (NoCapacity("full"), "full", "the drafter had no room"),
        (ServiceRefused("no credit"), "refused", "the drafter refused the request"),
    ],
)
async def test_a_drafter_s_failure_is_told(error: Exception, reason: str, words: str) -> None:
    failing = Failing(NullEngine(), "open", 0, lambda: error)
    _, stats = await answer(World([NullEngine()], [failing]), job("speculative"))
    (move,) = stats.moves
    assert (move.reason, move.role, move.device, move.words) == (reason, "drafter", None, words)
    assert stats.replans == 1


async def test_a_device_that_is_late_is_told_with_its_name_and_the_tokens_before() -> None:
    limits = Limits(timeouts=Timeouts(connect_s=1, open_s=1, first_s=0.05, step_s=0.05))
    phone = Failing(NullEngine(), "generate", 5)
    world = World(
        [NullEngine()], devices={"phone": phone, "slow": NullEngine(tokens_per_s=0.1)}, limits=limits
    )
    _, lost = await answer(world, job("device", "phone"))
    _, late = await answer(world, job("device", "slow"))
    assert [(m.position, m.reason, m.words) for m in lost.moves] == [(5, "lost", "device phone was lost")]
    assert [(m.position, m.reason, m.words) for m in late.moves] == [
        (0, "late", "device slow did not answer in time")
    ]


async def test_a_full_verifier_and_one_whose_service_refuses_are_told() -> None:
    for error, reason in ((NoCapacity("full"), "full"), (ServiceRefused("no credit"), "refused")):
        failing = Failing(NullEngine(), "open", 0, lambda error=error: error)
        _, stats = await answer(World([failing, NullEngine()]), job("cloud"))
        assert [(move.reason, move.role) for move in stats.moves] == [(reason, "target")]


async def test_a_mode_for_which_an_endpoint_is_missing_says_which() -> None:
    """Nothing has failed, so that it counts as no replan."""
    _, stats = await answer(World([NullEngine()]), job("speculative"))
    assert (stats.mode, stats.replans) == ("cloud", 0)
    assert [(m.position, m.reason, m.words) for m in stats.moves] == [(0, "absent", "no drafter was up")]


class Silent(NullEngine):
    """An engine that says nothing until it is healed. asked: how often it was to open a session."""

    def __init__(self) -> None:
        super().__init__()
        self.healed, self.asked = asyncio.Event(), 0

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> NullSession:
        self.asked += 1
        await self.healed.wait()
        return await super().open(prompt, sampling, log)

    async def stats(self) -> EngineStats:
        await self.healed.wait()
        return await super().stats()


async def test_a_silent_replica_is_found_by_one_request_and_spares_the_others() -> None:
    silent, loop = Silent(), asyncio.get_running_loop()
    world = World([silent, NullEngine()], limits=Limits())
    while not silent.asked:
        ids, stats = await answer(world, job("cloud"))
        assert ids == EXPECTED
    assert (silent.asked, stats.replans) == (1, 1)
    began_s = loop.time()
    for _ in range(8):
        _, stats = await answer(world, job("cloud"))
        assert stats.replans == 0
    assert silent.asked == 1
    assert loop.time() - began_s < PROBE_S
    silent.healed.set()
    await asyncio.sleep(0)
    for _ in range(8):
        await answer(world, job("cloud"))
    assert silent.asked > 1, "it is asked again once it has said something"
    assert await left_open(world) == 0


class Stopping(Silent):
    """A silent engine that admits sessions."""

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> NullSession:
        return await NullEngine.open(self, prompt, sampling, log)

    class session_class(NullSession):
        _engine: Stopping

        async def generate(self) -> AsyncGenerator[Tokens, None]:
            stream = super().generate()
            yield await anext(stream)
            await self._engine.healed.wait()
            async for tokens in stream:
                yield tokens


@pytest.mark.parametrize("alone", [False, True])
async def test_a_silent_replica_is_left_as_soon_as_another_comes_up(alone: bool) -> None:
    loop, only = asyncio.get_running_loop(), Stopping()
    world = World([only], limits=Limits())
    answering = asyncio.ensure_future(answer(world, job("cloud")))
    await asyncio.sleep(10.0)
    assert not answering.done(), "there is no other"
    if not alone:
        world.list_pool("verifier", *world.snapshot.pools["verifier"], world.add("verifier", 1, NullEngine()))
    else:
        only.healed.set()
    ids, stats = await answering
    assert (ids, stats.replans) == (EXPECTED, not alone)
    assert loop.time() < 10.0 + QUIET_S + PROBE_S
    only.healed.set()
    assert await left_open(world) == 0


HUNG_S = 3.0


class Hanging(Stopping):
    """An engine that hangs after its first token, and says so when HUNG_S of the loop's time have passed."""

    async def stats(self) -> EngineStats:
        overdue_s = max(0.0, asyncio.get_running_loop().time() - HUNG_S)
        return msgspec.structs.replace(await NullEngine.stats(self), overdue_s=overdue_s)


async def test_a_hung_replica_is_left_soon_however_many_have_asked_it_before() -> None:
    """The second request is late shortly after the first one has heard that all is well."""
    loop, hanging = asyncio.get_running_loop(), Hanging()
    world = World([hanging], limits=Limits())
    answering = [asyncio.ensure_future(answer(world, job("cloud")))]
    await asyncio.sleep(0.04)
    answering.append(asyncio.ensure_future(answer(world, job("cloud"))))
    await asyncio.sleep(0.5)
    world.list_pool("verifier", *world.snapshot.pools["verifier"], world.add("verifier", 1, NullEngine()))
    for ids, stats in await asyncio.gather(*answering):
        assert (ids, stats.replans) == (EXPECTED, 1)
    assert loop.time() < HUNG_S + QUIET_S + 0.01
    hanging.healed.set()
    assert await left_open(world) == 0


class Clinging(NullEngine):
    """An engine whose sessions take long to end."""

    class session_class(NullSession):
        async def cancel(self) -> None:
            await asyncio.sleep(60.0)
            await super().cancel()


async def test_sessions_that_end_late_do_not_keep_the_answer_waiting() -> None:
    """Here that of the device, when the verifier is lost."""
    loop, failing = asyncio.get_running_loop(), Failing(NullEngine(), "verify", 1)
    world = World([failing, NullEngine()], devices={"phone": Clinging()})
    ids, stats = await answer(world, job("speculative", "phone"))
    assert (ids, failing.fired, stats.replans) == (EXPECTED, 1, 1)
    assert loop.time() < VACATE_S + 1.0
    await world.executor.settled()


async def test_when_all_fail_it_gives_up() -> None:
    failing = [Failing(NullEngine(), "generate") for _ in range(4)]
    world = World(failing, limits=Limits(replans=2))
    with pytest.raises(EngineStopped, match="given up after 2 attempts"):
        await answer(world, job("cloud"))
    assert sum(f.fired for f in failing) == 3
    assert await left_open(world) == 0


@pytest.mark.parametrize(("where", "served"), [("open", True), ("generate", False)])
async def test_a_new_request_is_not_given_up_for_endpoints_that_did_not_admit_it(
    where: str, served: bool
) -> None:
    """One that they have admitted may be what they die of."""
    world = World([*(Failing(NullEngine(), where) for _ in range(3)), NullEngine()], limits=Limits(replans=2))
    answering = answer(world, job("cloud"))
    if served:
        assert (await answering)[0] == EXPECTED
    else:
        with pytest.raises(EngineStopped, match="given up after 2 attempts"):
            await answering
    assert await left_open(world) == 0


async def test_losses_count_from_the_last_token_on() -> None:
    failing = [Failing(NullEngine(), "generate", 2) for _ in range(5)]
    world = World([*failing, NullEngine()], limits=Limits(replans=1, assign_s=0.0))
    ids, stats = await answer(world, job("cloud"))
    assert ids == EXPECTED
    assert stats.replans == sum(f.fired for f in failing) > 1, (
        "more than there may be without a token in between"
    )


async def test_half_an_answer_is_not_given_up_while_somebody_may_come_back() -> None:
    """The caller's own link may be cut for a while, and with it the path to all endpoints."""
    world = World([Failing(NullEngine(), "generate", 3) for _ in range(3)])
    asked = 0

    async def assign(wanted: RoutingRequest) -> Assignment:
        nonlocal asked
        asked += 1
        if asked > 6:
            world.engines = dict.fromkeys(world.engines, NullEngine())
        return world.router.assign_now(wanted, waited_s=RETRY_LOST_S)

    executor = Executor(assign, Reach(world._dial), limits=Limits(replans=0))
    ids = [i async for delta in executor.run(job("cloud")) for i in delta.ids]
    assert ids == EXPECTED
    assert asked > 6
    await executor.settled()


async def test_refusals_reach_the_client_as_they_are() -> None:
    world = World([NullEngine(capacity=1)], devices={"phone": NullEngine(context=16)})
    for wanted, error in [
        (job("cloud", max_tokens=600), ContextOverflow),
        (job("device", "phone"), ContextOverflow),
        (job("device", "tablet"), NoSuchDevice),
        (job("telepathy"), UnknownMode),
    ]:
        with pytest.raises(error):
            await answer(world, wanted)
        await world.executor.settled()
    first = world.executor.run(job("cloud"))
    await anext(first)
    with pytest.raises(NoCapacity):
        await answer(world, Job(12, PROMPT, Sampling()))
    await first.aclose()
    assert await left_open(world) == 0


@pytest.mark.parametrize("operation", ["open", "generate"])
async def test_a_new_answer_goes_where_there_is_room(operation: str) -> None:
    full = Failing(NullEngine(), operation, 0, lambda: NoCapacity("full", retry_after_s=60.0))
    world = World([full, NullEngine()])
    ids, stats = await answer(world, job("cloud"))
    assert (full.fired, ids, stats.replans) == (1, EXPECTED, 1)
    assert await left_open(world) == 0


@pytest.mark.parametrize(("mode", "operation"), [("cloud", "generate"), ("speculative", "verify")])
async def test_what_has_only_waited_goes_where_there_is_room(mode: str, operation: str) -> None:
    full = Failing(NullEngine(), operation, 0, lambda: HandedOver("others have room", 0.0))
    world = World([full, NullEngine()], [NullEngine()])
    ids, stats = await answer(world, job(mode))
    assert (full.fired, ids, stats.replans) == (1, EXPECTED, 0)
    assert not world.gone
    assert world.wanted[-1].full == (world.snapshot.pools["verifier"][0].key,)
    assert await left_open(world) == 0


async def test_a_new_answer_is_refused_where_nobody_has_room() -> None:
    engines = [
        Failing(NullEngine(), "open", 0, lambda: NoCapacity("full", retry_after_s=60.0)) for _ in range(2)
    ]
    world = World(engines)
    with pytest.raises(NoCapacity) as refused:
        await answer(world, job("cloud"))
    assert ([e.fired for e in engines], refused.value.retry_after_s) == ([1, 1], 60.0)
    with pytest.raises(NoCapacity):
        await answer(world, job("cloud"))
    assert [e.fired for e in engines] == [2, 2], "they are asked again by the next request"


@pytest.mark.parametrize("after", [0, 5])
async def test_an_answer_goes_on_where_another_service_serves(after: int) -> None:
    shut = Failing(NullEngine(), "generate", after, lambda: ServiceRefused("no credit"))
    world = World([shut, NullEngine()])
    ids, stats = await answer(world, job("cloud"))
    assert (shut.fired, ids, stats.replans) == (1, EXPECTED, 1)
    assert await left_open(world) == 0


@pytest.mark.parametrize("after", [0, 5])
async def test_a_refusal_of_the_only_service_is_final(after: int) -> None:
    shut = Failing(NullEngine(), "generate", after, lambda: ServiceRefused("no credit"))
    world = World([shut])
    with pytest.raises(ServiceRefused, match="no credit"):
        await answer(world, job("cloud"))
    assert shut.fired == 1
    assert not world.gone
    assert await left_open(world) == 0


@pytest.mark.parametrize("order", [list, reversed])
async def test_a_full_service_has_the_last_word_where_the_other_one_serves_nothing(
    order: Callable[[list[Failing]], Iterable[Failing]],
) -> None:
    shut = Failing(NullEngine(), "open", 0, lambda: ServiceRefused("no credit"))
    full = Failing(NullEngine(), "open", 0, lambda: NoCapacity("full", retry_after_s=60.0))
    with pytest.raises(NoCapacity):
        await answer(World([*order([shut, full])]), job("cloud"))
    assert (shut.fired, full.fired) == (1, 1)


async def test_half_an_answer_waits_for_room() -> None:
    full = Failing(NullEngine(), "open", 0, lambda: NoCapacity("full", retry_after_s=0.01))
    phone = Failing(NullEngine(), "generate", 5)
    world = World([full, NullEngine()], devices={"phone": phone})
    ids, stats = await answer(world, job("device", "phone"))
    assert (full.fired, ids, stats.replans) == (1, EXPECTED, 2)


@pytest.mark.parametrize("mode", ["cloud", "device", "speculative"])
async def test_a_client_that_leaves_stops_the_work_everywhere(mode: str) -> None:
    world = World([NullEngine(tokens_per_s=500)], [NullEngine()], {"phone": NullEngine(tokens_per_s=500)})
    for device in (None, "phone"):
        async with aclosing(world.executor.run(job(mode, device))) as deltas:
            await anext(deltas)
        assert await left_open(world) == 0
    stats = [await engine.stats() for engine in world.engines.values()]
    assert sum(s.opened for s in stats) == sum(s.cancelled for s in stats) >= 2


async def test_a_cancelled_task_stops_the_work_everywhere() -> None:
    world = World([NullEngine(tokens_per_s=5)], [NullEngine()])
    task = asyncio.ensure_future(answer(world, job("speculative")))
    while not (await world.engines["verifier@verifier:0"].stats()).opened:  # noqa: ASYNC110
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await left_open(world) == 0


async def test_leaving_a_dead_endpoint_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    dead = Failing(NullEngine(), "cancel", 0)
    with caplog.at_level(logging.INFO):
        ids, _ = await answer(world := World([dead]), job("cloud"))
        await world.executor.settled()
    assert (ids, dead.fired) == (EXPECTED, 1)
    assert "pulled the plug" in caplog.text


async def test_many_modes_at_once() -> None:
    world = World([NullEngine(), NullEngine()], [NullEngine(mistake_every=7)], {"phone": NullEngine()})
    modes = [("cloud", None), ("device", "phone"), ("speculative", "phone"), ("speculative", None)]
    jobs = [
        Job(n, (n + 1, 9), Sampling(max_tokens=40), mode=modes[n % 4][0], device=modes[n % 4][1])
        for n in range(64)
    ]
    answers = await asyncio.gather(*(answer(world, wanted) for wanted in jobs))
    assert [ids for ids, _ in answers] == [reference(wanted.prompt, 40) for wanted in jobs]
    assert await left_open(world) == 0


async def test_the_time_until_it_is_assigned_is_told() -> None:
    class Slow(World):
        async def _assign(self, wanted: RoutingRequest) -> Assignment:
            await asyncio.sleep(0.3)
            return await super()._assign(wanted)

    _, stats = await answer(Slow([NullEngine()]), job("cloud"))
    assert stats.stages_s["assign"] == pytest.approx(0.3)


async def test_a_token_in_between_allows_no_more_losses_than_there_may_be() -> None:
    engines = [Failing(NullEngine(), "generate", after) for after in (2, 0, 0, 0)]
    world = World(engines, limits=Limits(replans=1, assign_s=0.0))
    with pytest.raises(EngineStopped, match="given up after 1 attempts"):
        await answer(world, job("cloud"))
    assert sum(each.fired for each in engines) == 2
    assert await left_open(world) == 0


async def test_places_that_are_not_lost_are_free_before_the_answer_goes_on() -> None:
    """The device has room for one session."""
    failing, phone = Failing(NullEngine(), "verify", 1), NullEngine(capacity=1)
    world = World([failing, NullEngine()], devices={"phone": phone})
    ids, stats = await answer(world, job("speculative", "phone"))
    assert (failing.fired, ids, stats.mode, stats.device, stats.replans) == (
        1,
        EXPECTED,
        "speculative",
        "phone",
        1,
    )
    assert (await phone.stats()).opened == 2


async def test_half_an_answer_asks_the_only_one_again_and_again_for_room() -> None:
    class Full(NullEngine):
        left = 3

        async def open(self, *asked: Any) -> NullSession:
            if self.left:
                self.left -= 1
                raise NoCapacity("full", retry_after_s=2.0)
            return await super().open(*asked)

    loop, full = asyncio.get_running_loop(), Full()
    world = World([full], devices={"phone": Failing(NullEngine(), "generate", 5)})
    ids, stats = await answer(world, job("device", "phone"))
    assert (full.left, ids, stats.replans) == (0, EXPECTED, 4)
    assert loop.time() == pytest.approx(3 * 2.0, abs=0.5)
