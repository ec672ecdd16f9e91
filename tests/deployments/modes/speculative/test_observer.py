"""The observer: what it tells the pair of the link and of the target's queue, also while the device rests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.cluster.devices.device import Device
from tandem.cluster.devices.profile import load_profile
from tandem.cluster.link.link import Link, LinkProfile
from tandem.deployments.modes.speculative import observer
from tandem.deployments.modes.speculative.mode import Speculation, SpeculativeMode
from tandem.deployments.modes.speculative.settings import SpeculativeOptions
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import Job, JobStats
from tandem.engine.base import Draft, Drafts, Engine, EngineStats, EngineStopped, Sampling, Verdict, Verify
from tandem.engine.null.engine import NullEngine, NullSession
from tandem.policies.speculation.history import PairHistory
from tandem.policies.speculation.window import StaticWindow
from tandem.simulator.world.network import LinkedEngine, Path
from tests.deployments.faults import PROMPT, Failing, Script, reference
from tests.deployments.modes import test_modes
from tests.virtual import in_virtual_time


class Told(PairHistory):
    """A pair that says when it was told of a shorter round-trip time. told: all of them."""

    def __init__(self, windows: list[int]) -> None:
        self.told: list[float] = []
        self.fell = asyncio.Event()
        super().__init__(Script(windows), rtt_s=9.0)

    @property
    def rtt_s(self) -> float:  # type: ignore[override]
        return self.told[-1]

    @rtt_s.setter
    def rtt_s(self, seconds: float) -> None:
        self.told.append(seconds)
        if seconds < 9.0:
            self.fell.set()


class Patient(NullEngine):
    """A target that keeps its first round waiting for an event."""

    def __init__(self, event: asyncio.Event) -> None:
        super().__init__()
        self.event = event

    class session_class(NullSession):
        _engine: Patient

        async def _verify(self, operation: Verify) -> Verdict:
            if self.output:
                await asyncio.wait_for(self._engine.event.wait(), 20)
            return await super()._verify(operation)


async def answer(
    target: Engine,
    device: Engine,
    pair: PairHistory,
    tokens: int = 30,
    window: int | None = None,
    target_rtt_s: float = 0.0,
) -> JobStats:
    engines = {"target": target, "device": device}
    wanted = Job(7, PROMPT, Sampling(max_tokens=tokens), options=(SpeculativeOptions(window=window),))
    log, _, stats = await test_modes.answer(
        SpeculativeMode, engines, wanted, pair=pair, batch_limit=2, target_rtt_s=target_rtt_s
    )
    assert log.ids == reference(PROMPT, tokens)
    return stats


def all_fused(stats: JobStats) -> bool:
    seen = Speculation.of(stats)
    return seen.fused_rounds == seen.rounds


def behind(engine: Engine, *rtt: tuple[float, float]) -> Engine:
    """A device with that engine, in virtual time. rtt: of its link, (seconds since the start, seconds)."""
    link = Link(LinkProfile(rtt_trace=rtt))
    path = Path.to_device(asyncio.get_running_loop(), link)
    return LinkedEngine(Device(engine, load_profile("native")), path)


@pytest.mark.parametrize("windows", [[1], [4]], ids=["fused", "distributed"])
@in_virtual_time
async def test_the_pair_follows_a_link_that_changes(windows: list[int]) -> None:
    pair = Told(windows)
    target, tokens = NullEngine(tokens_per_s=20), 24 if windows == [1] else 96
    stats = await answer(target, behind(NullEngine(), (0.0, 0.1), (0.4, 0.0)), pair, tokens)
    configured, first, *_ = pair.told
    assert configured == 9.0
    assert first == pytest.approx(0.1)
    assert min(pair.told) < 0.05
    assert all_fused(stats) == (windows == [1])


@in_virtual_time
async def test_a_drafts_time_is_told_from_the_links_when_that_has_just_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the interval, which would find out later."""
    monkeypatch.setattr(observer, "EVERY_S", 60.0)
    pair = Told([4])
    draft_s: list[float] = []
    pair.note = lambda *round: round[5] or draft_s.append(round[4])  # type: ignore[func-returns-value,method-assign]
    await answer(NullEngine(), behind(Drafting(0.02), (0.0, 0.01), (0.05, 0.3)), pair, tokens=26)
    assert max(pair.told[1:]) == pytest.approx(0.3), "the link has become slow"
    assert draft_s
    assert draft_s == pytest.approx([0.02] * len(draft_s)), (
        "in no round was that taken for the drafter's time"
    )


@in_virtual_time
async def test_the_targets_time_is_without_its_link() -> None:
    pair = Told([4])
    verify_s: list[float] = []
    pair.note = lambda *round: verify_s.append(round[3])  # type: ignore[method-assign]
    cloud = LinkedEngine(
        Verifying(0.05), Path.to_cloud(asyncio.get_running_loop(), Link(LinkProfile(rtt_s=0.3)))
    )
    await answer(cloud, NullEngine(), pair, target_rtt_s=0.3)
    assert verify_s == pytest.approx([0.05] * len(verify_s), abs=0.01)
    assert verify_s


class Verifying(NullEngine):
    """Takes its time over a verdict."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    class session_class(NullSession):
        _engine: Verifying

        async def _verify(self, operation: Verify) -> Verdict:
            await asyncio.sleep(self._engine.seconds)
            return await super()._verify(operation)


class Drafting(NullEngine):
    """Takes its time over a draft."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    class session_class(NullSession):
        _engine: Drafting

        async def _draft(self, operation: Draft) -> Drafts:
            draft = await super()._draft(operation)
            await asyncio.sleep(self._engine.seconds)  # it is what is measured
            return draft


async def test_the_pair_learns_the_targets_queue() -> None:
    pair = Told([4])
    target = Patient(pair.fell)
    await target.open(PROMPT, Sampling())  # somebody else's
    await answer(target, NullEngine(), pair)
    assert pair.target.queue == 1.0


async def test_nobody_observes_where_the_client_fixed_the_window() -> None:
    class Unasked(NullEngine):
        async def stats(self) -> EngineStats:
            raise AssertionError("nobody needs to know")

    pair = PairHistory(Script([4]), rtt_s=0.5)
    await answer(Unasked(), Unasked(), pair, window=3)
    assert pair.rtt_s == 0.5


async def test_a_device_that_dies_while_it_rests_is_not_missed() -> None:
    asked = asyncio.Event()

    def unplugged() -> Exception:
        asked.set()
        return EngineStopped("pulled the plug")

    device = Failing(NullEngine(), "stats", 0, unplugged)
    stats = await answer(Patient(asked), device, PairHistory(Script([1])))
    assert device.fired == 1
    assert all_fused(stats)


class Asked:
    """A session's endpoint of which statistics are asked. asked: how often."""

    def __init__(self, rtt_s: float, takes_s: float = 0.0) -> None:
        self.endpoint = EndpointInfo("there", "here:1", "verifier", rtt_s=rtt_s)
        self.took_s, self.takes_s, self.asked = 0.0, takes_s, 0

    async def stats(self) -> EngineStats:
        self.asked += 1
        await asyncio.sleep(self.takes_s)
        return EngineStats(sessions=6, base_s=0.02, token_s=0.001)


async def is_ready() -> None:
    """Return at once: the session is open."""


def observing(target: Any, device: Any, batch_limit: int = 8) -> tuple[PairHistory, observer.Observer]:
    pair = PairHistory(StaticWindow(), rtt_s=9.0)
    return pair, observer.Observer(pair, target, device, is_ready, batch_limit)


@in_virtual_time
async def test_a_draft_tells_what_the_link_took_beside_the_targets_own() -> None:
    device = Asked(0.2)
    pair, watching = observing(Asked(0.05), device)
    assert (watching.device_s, watching.target_s) == (0.2, 0.05)
    for took_s, draft_s, link_s in ((0.5, 0.4, 0.1), (0.3, 0.4, 0.0)):
        device.took_s = took_s
        watching.drafted(Drafts([], took_s=draft_s))
        assert watching.device_s == pytest.approx(link_s)
        assert pair.rtt_s == pytest.approx(link_s + 0.05)
    before = pair.rtt_s
    device.took_s = 7.0
    watching.drafted(Drafts([]))
    assert pair.rtt_s == before, "it does not say how long it took"


@in_virtual_time
async def test_what_is_old_is_asked_again_and_a_link_to_the_target_is_measured() -> None:
    target, device = Asked(0.05, takes_s=0.07), Asked(0.2, takes_s=0.11)
    pair, watching = observing(target, device)
    for _ in range(3):
        watching.look()
    await asyncio.sleep(0.2)
    assert (target.asked, device.asked) == (1, 1)
    assert (watching.target_s, watching.device_s) == (pytest.approx(0.07), pytest.approx(0.11))
    assert pair.rtt_s == pytest.approx(0.18)
    told = pair.target
    assert (told.queue, told.base_s, told.position_s) == (6 / 8, 0.02, 0.001)
    watching.look()
    await asyncio.sleep(0.2)
    watching.look()
    await asyncio.sleep(0.2)
    assert (target.asked, device.asked) == (2, 2)
    target.takes_s = device.takes_s = 9.0
    await asyncio.sleep(observer.EVERY_S)
    watching.look()
    await asyncio.sleep(0.01)
    watching.stop()
    await asyncio.sleep(20.0)
    assert watching.target_s == pytest.approx(0.07), "it asks no more"
    assert (target.asked, device.asked) == (3, 3)


@in_virtual_time
@pytest.mark.parametrize(("rtt_s", "batch_limit", "asked"), [(0.0, 0, 0), (0.0, 8, 1), (0.05, 0, 1)])
async def test_a_target_is_asked_where_its_queue_or_its_link_counts(
    rtt_s: float, batch_limit: int, asked: int
) -> None:
    target = Asked(rtt_s)
    pair, watching = observing(target, Asked(0.2), batch_limit)
    watching.look()
    await asyncio.sleep(0.1)
    assert target.asked == asked
    assert (pair.target.queue > 0.0) == (batch_limit > 0)
    assert watching.target_s == 0.0
