"""Silent stalls and full endpoints, with production's timeouts in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise

import pytest

from tandem.deployments.config.settings import AccountSettings
from tandem.deployments.modes.speculative.mode import OPENING_S
from tandem.deployments.request.job import Delta, Job, JobStats
from tandem.deployments.request.timeouts import Limits, Timeouts
from tandem.engine.base import (
    Draft,
    Drafts,
    Engine,
    EngineStats,
    EngineStopped,
    NoCapacity,
    Sampling,
    Tokens,
)
from tandem.engine.null.engine import NullEngine, NullSession
from tandem.policies.race.dispatch import DEVICE_ONLY, SERVER_ONLY
from tandem.policies.race.migration import NeverMigrate
from tandem.policies.reader.stall_timeout import FLOOR_S
from tests.deployments.faults import PROMPT, Failing, World, reference, with_race
from tests.deployments.modes.race.test_mode import Planned
from tests.virtual import run

TOKENS_PER_S, READER, LENGTH = 20.0, 5.0, 100
EXPECTED = reference(PROMPT, LENGTH)


class Pausing(NullEngine):
    """Pauses for pause_s after so many tokens of a session."""

    def __init__(self, after: int = LENGTH // 4, pause_s: float = 1e6) -> None:
        super().__init__(TOKENS_PER_S)
        self.after, self.pause_s = after, pause_s

    class session_class(NullSession):
        _engine: Pausing

        async def generate(self) -> AsyncGenerator[Tokens, None]:
            async for tokens in super().generate():
                yield tokens
                if len(self.output) == self._engine.after:
                    await asyncio.sleep(self._engine.pause_s)

        async def _draft(self, operation: Draft) -> Drafts:
            draft = await super()._draft(operation)
            if operation.position + len(operation.ids) >= self._engine.after:
                await asyncio.sleep(self._engine.pause_s)
            return draft


class Stopped(NullEngine):
    """Says nothing at all from a time on, as a process that was stopped."""

    def __init__(self, at_s: float) -> None:
        super().__init__(TOKENS_PER_S)
        self._at_s = at_s

    async def running(self) -> None:
        """Return at once, or never."""
        if asyncio.get_running_loop().time() >= self._at_s:
            await asyncio.Event().wait()

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> NullSession:
        await self.running()
        return await super().open(prompt, sampling, log)

    async def stats(self) -> EngineStats:
        await self.running()
        return await super().stats()

    class session_class(NullSession):
        _engine: Stopped

        async def _pause(self, tokens: int) -> None:
            await super()._pause(tokens)
            await self._engine.running()

        async def cancel(self) -> None:
            await self._engine.running()
            await super().cancel()


class Answer:
    """times_s: when each token came."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.times_s: list[float] = []
        self.stats = JobStats()

    def take(self, delta: Delta) -> None:
        self.ids += delta.ids
        self.times_s += [asyncio.get_running_loop().time()] * len(delta.ids)
        self.stats = delta.stats or self.stats

    @property
    def longest_gap_s(self) -> float:
        return max(b - a for a, b in pairwise(self.times_s))

    @property
    def stall_s(self) -> float:
        """Return the reader's wait with an empty buffer."""
        dry_s, waited_s = self.times_s[0], 0.0
        for time_s in self.times_s:
            waited_s += max(0.0, time_s - dry_s)
            dry_s = max(dry_s, time_s) + 1 / READER
        return waited_s


def job(mode: str, device: str | None, reader: float = READER, number: int = 1) -> Job:
    return Job(number, PROMPT, Sampling(max_tokens=LENGTH, reader_rate=reader), mode=mode, device=device)


async def ask(world: World, wanted: Job) -> Answer:
    answer = Answer()
    async for delta in world.executor.run(wanted):
        answer.take(delta)
    await world.executor.settled()
    return answer


def good() -> NullEngine:
    return NullEngine(TOKENS_PER_S)


@pytest.mark.parametrize(
    ("mode", "device", "stalling"),
    [
        ("cloud", None, "verifier"),
        ("device", "phone", "phone"),
        ("speculative", None, "drafter"),
        ("speculative", "phone", "phone"),
        ("race", "phone", "verifier"),
    ],
)
def test_a_stall_is_noticed_before_the_reader_has_waited_for_long(
    mode: str, device: str | None, stalling: str
) -> None:
    async def main() -> None:
        verifiers = [Pausing() if stalling == "verifier" else good(), good()]
        phone = Pausing() if stalling == "phone" else good()
        world = World(
            verifiers[: 1 if mode == "race" else 2],
            [Pausing() if stalling == "drafter" else good()],
            {"phone": phone},
            limits=Limits(),
            accounts=AccountSettings(budget=1.0),
            race=with_race(lambda: Planned(SERVER_ONLY), NeverMigrate),
        )
        answer = await ask(world, job(mode, device))
        assert answer.ids == EXPECTED
        assert answer.longest_gap_s > 1.0, "it stalled"
        assert answer.longest_gap_s < FLOOR_S + 2.0 < Timeouts().step_s
        assert answer.stall_s < FLOOR_S
        assert len(world.gone) == 1

    run(main())


@pytest.mark.parametrize("at_s", [0.0, 1.0])
@pytest.mark.parametrize("reader", [0.0, 1000.0])
@pytest.mark.parametrize(
    ("mode", "device", "stopped"),
    [
        ("cloud", None, "verifier"),
        ("device", "phone", "phone"),
        ("speculative", None, "drafter"),
        ("speculative", None, "verifier"),
        ("speculative", "phone", "phone"),
        ("speculative", "phone", "verifier"),
        ("race", "phone", "verifier"),
        ("race", "phone", "phone"),
    ],
)
def test_a_process_that_is_stopped_costs_a_program_no_more_than_three_seconds(
    mode: str, device: str | None, stopped: str, reader: float, at_s: float
) -> None:
    async def main() -> None:
        verifiers = [Stopped(at_s) if stopped == "verifier" else good(), good()]
        drafter = Stopped(at_s) if stopped == "drafter" else good()
        phone = Stopped(at_s) if stopped == "phone" else good()
        plan = SERVER_ONLY if stopped == "verifier" else DEVICE_ONLY
        world = World(
            verifiers,
            [drafter],
            {"phone": phone},
            limits=Limits(),
            accounts=AccountSettings(budget=1.0),
            race=with_race(lambda: Planned(plan), NeverMigrate),
        )
        began_s = asyncio.get_running_loop().time()
        answer = await ask(world, job(mode, device, reader))
        assert answer.ids == EXPECTED
        gap_s = max(answer.longest_gap_s, answer.times_s[0] - began_s)
        assert gap_s <= 3.0
        if mode == "speculative" and stopped != "verifier" and at_s == 0.0:
            assert gap_s < 2 * OPENING_S, "its session is never open, and the target decodes alone"
        else:
            assert gap_s > 1.0, "it stalled"

    run(main())


def test_one_that_is_busy_says_so_and_is_left_alone() -> None:
    async def main() -> None:
        world = World([Pausing(pause_s=3.5), good()], limits=Limits())
        answer = await ask(world, job("cloud", None, reader=0.0))
        assert (answer.ids, answer.stats.replans, world.gone) == (EXPECTED, 0, [])
        assert answer.longest_gap_s == pytest.approx(3.5, abs=0.1)

    run(main())


@pytest.mark.parametrize("silent", ["phone", "drafter"])
def test_a_helper_that_never_gives_a_draft_holds_no_reader_up(silent: str) -> None:
    async def main() -> None:
        drafter, phone = (Pausing(after=0) if silent == name else good() for name in ("drafter", "phone"))
        world = World([good()], [drafter], {"phone": phone}, limits=Limits())
        answer = await ask(world, job("speculative", "phone" if silent == "phone" else None))
        assert answer.ids == EXPECTED
        assert 1.0 < answer.longest_gap_s < FLOOR_S + 2.0 < Timeouts().step_s

    run(main())


def test_where_nobody_else_could_go_on_there_is_no_hurry() -> None:
    async def main() -> None:
        answer = await ask(World([Pausing(pause_s=29.0)], limits=Limits()), job("cloud", None))
        assert (answer.ids, answer.stats.replans) == (EXPECTED, 0)

    run(main())


@pytest.mark.parametrize(("pause_s", "moved"), [(3.0, 0), (4.5, 1)])
def test_an_engine_that_lets_a_reader_wait_is_given_time(pause_s: float, moved: int) -> None:
    """25 tokens in 1.25 s: the reader has something to read for 3.75 s more, and nobody hurries for FLOOR_S."""

    async def main() -> None:
        answer = await ask(World([Pausing(pause_s=pause_s), good()], limits=Limits()), job("cloud", None))
        assert (answer.ids, answer.stats.replans) == (EXPECTED, moved)

    run(main())


def test_an_engine_that_pauses_while_there_is_enough_to_read_is_left_alone() -> None:
    """80 tokens in 4 s are read in 16 s."""

    async def main() -> None:
        world = World([Pausing(after=80, pause_s=11.0), good()], limits=Limits())
        answer = await ask(world, job("cloud", None))
        assert (answer.ids, answer.stats.replans) == (EXPECTED, 0)
        assert answer.longest_gap_s == pytest.approx(11.0, abs=0.1)

    run(main())


def test_half_an_answer_waits_for_room_and_goes_before_new_ones() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        verifier = NullEngine(TOKENS_PER_S, capacity=1)
        world = World([verifier], devices={"phone": Failing(good(), "generate", 5)}, limits=Limits(replans=1))
        busy = await verifier.open(PROMPT, Sampling())
        refused = 0

        async def others() -> None:
            nonlocal refused
            for number in range(200):
                await asyncio.sleep(0.19)
                try:
                    await ask(world, job("cloud", None, number=number + 10))
                except NoCapacity:
                    refused += 1
                if answering.done():
                    return

        answering = loop.create_task(ask(world, job("device", "phone")))
        newcomers = loop.create_task(others())
        loop.call_at(20.0, lambda: loop.create_task(busy.cancel()))
        answer = await answering
        await newcomers
        assert answer.ids == EXPECTED
        assert answer.stats.replans > 10, "one loss, and many refusals"
        assert answer.longest_gap_s < 22.0, "it was next when there was room"
        assert refused > 50

    run(main())


def test_half_an_answer_does_not_wait_for_ever() -> None:
    async def main() -> None:
        verifier = NullEngine(capacity=1)
        world = World([verifier], devices={"phone": Failing(NullEngine(), "generate", 5)}, limits=Limits())
        await verifier.open(PROMPT, Sampling())
        with pytest.raises(EngineStopped, match="no room for the rest of the answer within 60 s"):
            await ask(world, job("device", "phone"))
        assert asyncio.get_running_loop().time() == pytest.approx(60.0, abs=2.0)

    run(main())


class Busy(NullEngine):
    """Answers, and lets nobody begin for long."""

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> NullSession:
        await asyncio.sleep(1e6)
        return await super().open(prompt, sampling, log)


def test_a_device_that_is_busy_is_not_waited_for_where_another_endpoint_can_answer() -> None:
    """A verifier is: the next one would only be as busy."""

    async def first_s(verifiers: Sequence[NullEngine], devices: dict[str, Engine], mode: str) -> float:
        world = World(verifiers, devices=devices, limits=Limits())
        answer = await ask(world, job(mode, next(iter(devices), None), reader=0.0))
        assert answer.ids == EXPECTED
        return answer.times_s[0]

    async def main() -> None:
        assert FLOOR_S <= await first_s([good()], {"phone": Busy()}, "device") < FLOOR_S + 0.2

    async def verifiers() -> None:
        assert await first_s([Busy(), good()], {}, "cloud") >= Timeouts().open_s

    run(main())
    run(verifiers())
