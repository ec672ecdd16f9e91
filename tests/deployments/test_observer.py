"""The observer: what it tells the pair of the link and of the target's queue, also while the device rests."""

from __future__ import annotations

import asyncio

import pytest

from cluster.endpoint import serve_engines
from cluster.link import Link, LinkProfile
from cluster.remote import connect
from cluster.tokenlog import TokenLog
from deployments.job import Job, JobStats
from deployments.plans import Speculative, observer
from engine.base import Draft, DraftProbs, Engine, EngineStats, EngineStopped, Sampling, Verdict
from engine.null_engine import NullEngine
from policies.pair import Pair
from tests.deployments.faults import PROMPT, Failing, Script, reference


class Told(Pair):
    """A pair that says when it was told of a round-trip time below `awaited_s`. told: all of them."""

    def __init__(self, windows: list[int], awaited_s: float = 9.0) -> None:
        self.told: list[float] = []
        self.fell, self.awaited_s = asyncio.Event(), awaited_s
        super().__init__(Script(windows), rtt_s=9.0)

    @property
    def rtt_s(self) -> float:  # type: ignore[override]
        return self.told[-1]

    @rtt_s.setter
    def rtt_s(self, seconds: float) -> None:
        self.told.append(seconds)
        if seconds < self.awaited_s:
            self.fell.set()


class Patient(NullEngine):
    """A target that keeps its first round waiting for an event."""

    def __init__(self, event: asyncio.Event) -> None:
        super().__init__()
        self.event = event

    async def verify(self, session: int, drafts: list[int], probs: DraftProbs | None = None) -> Verdict:
        if self._get(session).output:
            await asyncio.wait_for(self.event.wait(), 20)
        return await super().verify(session, drafts, probs)


async def answer(
    target: Engine, device: Engine, pair: Pair, tokens: int = 30, window: int | None = None
) -> JobStats:
    plan = Speculative(target, device, pair, distributed=True, batch_limit=2)
    wanted = Job(7, PROMPT, Sampling(max_tokens=tokens), window=window)
    log, stats = TokenLog(), JobStats()
    async for piece in plan.run(wanted, log, stats):
        log.append(piece.position, piece.ids, piece.origins, 0.0)
    assert log.ids == reference(PROMPT, tokens)
    return stats


@pytest.mark.parametrize("windows", [[1], [4]], ids=["fused", "distributed"])
async def test_the_pair_follows_a_link_that_changes(windows: list[int]) -> None:
    pair = Told(windows, awaited_s=0.05)
    link = Link(LinkProfile(rtt_trace=((0.0, 0.1), (0.4, 0.0))))
    async with serve_engines({"device": NullEngine()}) as endpoint:
        connection = await connect(endpoint.address)
        stats = await answer(Patient(pair.fell), connection.engine("device", link), pair)
        await connection.close()
    configured, first, *_ = pair.told
    assert configured == 9.0
    assert first > 0.08, "the emulated link was still slow, at 0.1 s less what the real one takes"
    assert min(pair.told) < 0.05
    assert (stats.fused_rounds == stats.rounds) == (windows == [1])


async def test_a_drafts_time_is_told_from_the_links_when_that_has_just_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the interval, which would find out later."""
    monkeypatch.setattr(observer, "EVERY_S", 60.0)
    pair = Told([4])
    draft_s: list[float] = []
    pair.note = lambda *round: draft_s.append(round[-1])  # type: ignore[method-assign]
    link = Link(LinkProfile(rtt_trace=((0.0, 0.01), (0.05, 0.3))))
    async with serve_engines({"device": Drafting(0.02)}) as endpoint:
        connection = await connect(endpoint.address)
        await answer(NullEngine(), connection.engine("device", link), pair, tokens=26)
        await connection.close()
    assert max(pair.told[1:]) > 0.2, "the link has become slow"
    late = [seconds for seconds in draft_s if seconds > 0.15]
    assert len(late) <= 1, "only the round in whose middle it did may be taken for the drafter's time"
    assert draft_s[-1] < 0.15


class Drafting(NullEngine):
    """Takes its time over a draft."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def draft(self, session: int, position: int, tokens: list[int], window: int) -> Draft:
        draft = await super().draft(session, position, tokens, window)
        await asyncio.sleep(self.seconds)  # it is what is measured
        return draft


async def test_the_pair_learns_the_targets_queue() -> None:
    pair = Told([4])
    target = Patient(pair.fell)
    await target.open(99, PROMPT, Sampling())  # somebody else's
    await answer(target, NullEngine(), pair)
    assert pair.queue == 1.0


async def test_nobody_observes_where_the_client_fixed_the_window() -> None:
    class Unasked(NullEngine):
        async def stats(self) -> EngineStats:
            raise AssertionError("nobody needs to know")

    pair = Pair(Script([4]), rtt_s=0.5)
    await answer(Unasked(), Unasked(), pair, window=3)
    assert pair.rtt_s == 0.5


async def test_a_device_that_dies_while_it_rests_is_not_missed() -> None:
    asked = asyncio.Event()

    def unplugged() -> Exception:
        asked.set()
        return EngineStopped("pulled the plug")

    device = Failing(NullEngine(), "stats", 0, unplugged)
    stats = await answer(Patient(asked), device, Pair(Script([1])))
    assert device.fired == 1
    assert stats.fused_rounds == stats.rounds
