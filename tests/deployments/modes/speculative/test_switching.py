"""Between the device and the cloud's own drafter in mid-answer: faults and clients that leave, at either."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest

from tandem.deployments.modes.speculative.mode import OPENING_S, Speculation
from tandem.deployments.request.job import Job
from tandem.engine.base import Draft, Drafts, EngineStats, NoCapacity, Sampling, Verdict, Verify
from tandem.engine.null.engine import NullEngine, NullSession
from tandem.policies.speculation.rounds import BURST
from tests.deployments.faults import PROMPT, Failing, World, reference
from tests.deployments.modes.test_executor import answer, left_open

pytestmark = pytest.mark.virtual_time

TOKENS = 60
EXPECTED = reference(PROMPT, TOKENS)
WINDOWS = (3, 3, 1, 1, 3, 1)  # 1 is fused


def job(session: int = 11, tokens: int = TOKENS) -> Job:
    return Job(session, PROMPT, Sampling(max_tokens=tokens), mode="speculative", device="phone")


async def test_both_kinds_of_rounds_make_one_answer() -> None:
    world = World([NullEngine()], [NullEngine()], {"phone": NullEngine(mistake_every=4)}, WINDOWS)
    ids, stats = await answer(world, job())
    assert ids == EXPECTED
    seen = Speculation.of(stats)
    assert 0 < seen.fused_rounds < seen.rounds
    assert 0 < seen.fused_drafted < seen.drafted
    assert seen.switches > 2
    assert (stats.mode, stats.device, stats.replans) == ("speculative", "phone", 0)
    assert await left_open(world) == 0


@pytest.mark.parametrize("after", [0, 1, 2, 3])
async def test_a_device_that_dies_is_replaced_by_the_cloud(after: int) -> None:
    """Calls 0 and 1 follow distributed rounds with these windows, 2 follows a fused one."""
    phone = Failing(NullEngine(), "draft", after)
    world = World([NullEngine()], [NullEngine()], {"phone": phone}, WINDOWS)
    ids, stats = await answer(world, job())
    assert phone.fired == 1
    assert (ids, stats.replans, stats.mode, stats.device) == (EXPECTED, 1, "cloud", None)
    assert (Speculation.of(stats).fused_rounds > 0) == (after >= 2)
    assert await left_open(world) == 0


@pytest.mark.parametrize(("operation", "after"), [("open", 0), ("draft", 0), ("draft", 1), ("draft", 2)])
@pytest.mark.parametrize("others", [0, 1])
async def test_the_device_goes_on_without_the_clouds_drafter(operation: str, after: int, others: int) -> None:
    failing = Failing(NullEngine(), operation, after)
    phone = NullEngine(mistake_every=5)
    world = World(
        [NullEngine()], [failing, *(NullEngine() for _ in range(others))], {"phone": phone}, WINDOWS
    )
    ids, stats = await answer(world, job())
    assert failing.fired == 1
    assert (ids, stats.replans, stats.mode, stats.device) == (EXPECTED, 1, "speculative", "phone")
    assert (await phone.stats()).opened == 2, "it took up again"
    assert Speculation.of(stats).fused_rounds > 1
    assert await left_open(world) == 0


async def test_a_cloud_drafter_that_is_full_is_done_without() -> None:
    full = Failing(NullEngine(), "open", 0, lambda: NoCapacity("full"))
    world = World([NullEngine()], [full], {"phone": NullEngine()}, WINDOWS)
    ids, stats = await answer(world, job())
    assert (full.fired, ids, stats.mode, stats.device) == (1, EXPECTED, "speculative", "phone")
    seen = Speculation.of(stats)
    assert (seen.fused_rounds > 0, seen.fused_drafted) == (True, 0), "the target alone"


@pytest.mark.parametrize("after", [0, 1, 3, 4, 6])
async def test_a_verifier_dies_in_either_kind_of_round(after: int) -> None:
    failing = Failing(NullEngine(), "verify", after)
    world = World([failing, NullEngine()], [NullEngine()], {"phone": NullEngine(mistake_every=4)}, WINDOWS)
    ids, stats = await answer(world, job())
    assert failing.fired == 1
    assert (ids, stats.replans, stats.mode, stats.device) == (EXPECTED, 1, "speculative", "phone")
    assert await left_open(world) == 0


async def test_a_client_that_leaves_stops_all_three() -> None:
    world = World([NullEngine()], [NullEngine()], {"phone": NullEngine()}, WINDOWS)
    async with aclosing(world.executor.run(job())) as deltas:
        async for _ in deltas:
            if all(stats.tokens_drafted for stats in await _helpers(world)):
                break
    assert await left_open(world) == 0
    stats = [await engine.stats() for engine in world.engines.values()]
    assert [(s.opened, s.cancelled) for s in stats] == [(1, 1)] * 3


@pytest.mark.parametrize("held", ["drafter", "phone"])
async def test_a_client_that_leaves_while_somebody_drafts_stops_all_three(held: str) -> None:
    drafters = {"drafter": NullEngine(), "phone": NullEngine()}
    drafters[held] = holding = Holding(after=1)
    world = World([NullEngine()], [drafters["drafter"]], {"phone": drafters["phone"]}, WINDOWS)
    task = asyncio.ensure_future(answer(world, job()))
    await asyncio.wait_for(holding.reached.wait(), 10)
    if held == "phone":  # it is in its second round, before the first fused one
        assert not (await drafters["drafter"].stats()).opened
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await left_open(world) == 0
    stats = [await engine.stats() for engine in world.engines.values()]
    assert sum(s.opened for s in stats) == sum(s.cancelled for s in stats) == (3 if held == "drafter" else 2)


async def test_a_session_stays_with_its_verifier() -> None:
    """The routing policy gives two verifiers sessions in turn."""
    verifiers = [Recording(), Recording()]
    world = World(verifiers, [NullEngine()], {"phone": NullEngine(mistake_every=4)}, WINDOWS)
    answers = await asyncio.gather(*(answer(world, job(session)) for session in range(1, 9)))
    assert [ids for ids, _ in answers] == [EXPECTED] * 8
    assert not verifiers[0].verified & verifiers[1].verified
    assert [len(v.verified) for v in verifiers] == [4, 4]
    assert await left_open(world) == 0


class Recording(NullEngine):
    """verified: the sessions it has verified for."""

    def __init__(self) -> None:
        super().__init__()
        self.verified: set[NullSession] = set()

    class session_class(NullSession):
        _engine: Recording

        async def _verify(self, operation: Verify) -> Verdict:
            self._engine.verified.add(self)
            return await super()._verify(operation)


class Holding(NullEngine):
    """Never returns from a draft after the first `after`; `reached` says that it has come to that."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.reached, self.left = asyncio.Event(), after

    class session_class(NullSession):
        _engine: Holding

        async def _draft(self, operation: Draft) -> Drafts:
            engine = self._engine
            if engine.left == 0:
                engine.reached.set()
                await asyncio.Event().wait()
            engine.left -= 1
            return await super()._draft(operation)


async def _helpers(world: World) -> list[EngineStats]:
    return [await e.stats() for key, e in world.engines.items() if not key.startswith("verifier")]


class SlowToOpen(NullEngine):
    """A device that takes OPEN_S to open a session; it counts the drafts that it was asked for."""

    OPEN_S = 0.2

    def __init__(self, open_s: float = OPEN_S) -> None:
        super().__init__()
        self.open_s = open_s

    async def open(self, *asked: Any) -> NullSession:
        await asyncio.sleep(self.open_s)
        return await super().open(*asked)


async def test_the_target_decodes_while_a_drafter_begins_that_has_rested() -> None:
    """The first answer leaves the pair at rest; in the second one it is tried once."""
    tokens = 2 * BURST
    phone = SlowToOpen()
    world = World([NullEngine(tokens_per_s=100)], [], {"phone": phone}, (0, 0, 3, 0))
    loop, times_s = asyncio.get_running_loop(), list[float]()
    for number in (11, 12):
        began_s = loop.time()
        ids, stats = await answer(world, job(number, tokens))
        times_s.append(loop.time() - began_s)
        assert ids == reference(PROMPT, tokens)
    seen = Speculation.of(stats)
    assert (seen.rounds, seen.drafted) == (1, 3)
    assert times_s[1] <= times_s[0] + SlowToOpen.OPEN_S / 2


@pytest.mark.parametrize("busy", ["phone", "drafter"])
async def test_an_answer_goes_on_while_its_drafter_is_too_busy_to_open_a_session(busy: str) -> None:
    drafter = SlowToOpen(open_s=0.9)
    here = {"phone": drafter} if busy == "phone" else {}
    world = World([NullEngine(tokens_per_s=20)], [] if here else [drafter], here, (3,))
    loop, times_s = asyncio.get_running_loop(), list[float]()
    wanted = Job(
        11, PROMPT, Sampling(max_tokens=TOKENS), mode="speculative", device="phone" if here else None
    )
    async with aclosing(world.executor.run(wanted)) as deltas:
        ids = []
        async for delta in deltas:
            ids += delta.ids
            times_s.append(loop.time())
    assert ids == EXPECTED
    assert max(b - a for a, b in pairwise(times_s)) <= OPENING_S + 0.1
    assert (await drafter.stats()).tokens_drafted > 0, "once it was open"
