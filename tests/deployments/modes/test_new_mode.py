"""A mode of its own, registered here alone: two verifiers take turns to give a token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from pydantic import Field

from tandem.app.api.completions.schema import TandemOptions
from tandem.app.api.stats.stats import stats as shown
from tandem.deployments.control.metrics import Metrics
from tandem.deployments.control.observation import Observation
from tandem.deployments.learning.report import Report
from tandem.deployments.modes import MODES
from tandem.deployments.modes.base import EndpointRole, Mode, ModeRun, RouterPart
from tandem.deployments.modes.sections import of_modes, options_of, with_options, with_sections
from tandem.deployments.request.assignment import Endpoints, Prices, RoutingRequest
from tandem.deployments.request.job import Delta, Figures, Job
from tandem.deployments.request.pools import VERIFIER
from tandem.deployments.request.session import EndpointSessions
from tandem.deployments.request.tokenlog import Origin, TokenLog
from tandem.deployments.routing.directory import Snapshot
from tandem.engine.base import EngineStopped, Sampling
from tandem.engine.config import Strict
from tandem.engine.null.engine import NullEngine
from tests.deployments.faults import PROMPT, Failing, World, reference
from tests.deployments.modes.test_executor import answer, left_open

pytestmark = pytest.mark.virtual_time


@dataclass(slots=True)
class Turns(Figures):
    mode = "turns"
    counters: ClassVar[Mapping[str, str]] = {"turns": "Tokens by whose turn it was"}

    first: int = 0
    second: int = 0

    def counted(self) -> Iterator[tuple[str, str, float]]:
        yield "turns", "first", self.first
        yield "turns", "second", self.second


class TurnsSettings(Strict):
    """longest: tokens that a player may give in a row."""

    longest: int = Field(1, ge=1)


class TurnsOptions(Strict):
    """second: whether the second player begins."""

    second: bool = False


class TurnsRouter(RouterPart[TurnsSettings]):
    """Deals the turns, and counts who has played."""

    played = 0

    def brief(self, wanted: RoutingRequest, endpoints: Endpoints, prices: Prices) -> int:
        return self.settings.longest

    def learn(self, report: Report, taught: object) -> None:
        if isinstance(taught, int):
            self.played += taught


class TurnsMode(Mode):
    name = "turns"
    roles = (EndpointRole("first", VERIFIER), EndpointRole("second", VERIFIER))
    section, settings, options = "turns", TurnsSettings, TurnsOptions
    router = TurnsRouter
    figures = Turns
    briefing = int

    def start(self, job: Job) -> ModeRun:
        return TurnsRun(job)


class TurnsRun(ModeRun):
    def __init__(self, job: Job) -> None:
        self.figures: Turns = Turns()
        self.job, self.assigned = job, 0

    async def run(
        self, sessions: EndpointSessions, log: TokenLog, briefing: object
    ) -> AsyncGenerator[Delta, None]:
        assert isinstance(briefing, int)
        self.assigned += 1
        players = sessions["first"], sessions["second"]
        await asyncio.gather(*(p.open(self.job.prompt, self.job.sampling, log.ids) for p in players))
        while True:
            position = len(log)
            turn = (position // briefing + self.job.asked(TurnsOptions).second) % 2
            verdict = await players[turn].verify([])
            await players[1 - turn].extend(position, verdict.ids)
            self.figures.first += turn == 0
            self.figures.second += turn == 1
            yield Delta(verdict.ids, [Origin.CLOUD], verdict.finish, position=position)
            if verdict.finish:
                return

    def report(self) -> int:
        return self.assigned


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODES, TurnsMode.name, TurnsMode)


def job(tokens: int = 9) -> Job:
    return Job(3, PROMPT, Sampling(max_tokens=tokens), mode="turns")


def played(world: World) -> int:
    part = world.router.modes["turns"]
    assert isinstance(part, TurnsRouter)
    return part.played


async def test_it_is_assigned_run_counted_and_learnt_from() -> None:
    engines = [NullEngine(), NullEngine()]
    world = World(engines, turns=TurnsSettings(longest=2))
    ids, stats = await answer(world, job())
    assert ids == reference(PROMPT, 9)
    assert (stats.mode, Turns.of(stats).first, Turns.of(stats).second) == ("turns", 5, 4)
    assert [(await e.stats()).opened for e in engines] == [1, 1]
    assert played(world) == 1
    assert await left_open(world) == 0
    assert shown([stats, stats]).model_dump()["modes"] == {"turns": {"first": 10, "second": 8}}
    metrics = Metrics({"target": Snapshot})
    metrics.observe(Observation("turns", 200, counted={(c, r): by for c, r, by in Turns.of(stats).counted()}))
    assert b'tandem_turns_total{reason="second"} 4.0' in metrics.exposition()[0]


async def test_its_options_are_a_requests_and_its_settings_an_applications() -> None:
    asked = with_options([TurnsMode])(TandemOptions).model_validate({"mode": "turns", "second": True})
    said = with_sections([TurnsMode])(Strict).model_validate({"turns": {"longest": 2}})
    world = World([NullEngine(), NullEngine()], **of_modes(said))
    ids, stats = await answer(world, replace(job(), options=options_of(asked)))
    assert ids == reference(PROMPT, 9)
    assert (Turns.of(stats).first, Turns.of(stats).second) == (4, 5)


async def test_it_goes_on_at_one_verifier_where_the_other_fails() -> None:
    bad = Failing(NullEngine(), "verify", 2, lambda: EngineStopped("gone"))
    world = World([bad, NullEngine()])
    ids, stats = await answer(world, job())
    assert (ids, stats.replans, bad.fired) == (reference(PROMPT, 9), 1, 1)
    assert played(world) == 2, "one run, assigned twice"
    assert Turns.of(stats).first + Turns.of(stats).second == 9
    assert await left_open(world) == 0
