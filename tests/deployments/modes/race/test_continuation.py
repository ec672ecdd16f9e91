"""Races with a service that cannot continue an answer: it takes part, and nothing is handed over to it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from tandem.deployments.modes.race.mode import Racing
from tandem.deployments.request.tokenlog import Origin
from tandem.engine.base import EngineStopped, Extend, InvalidRequest, Operation, R, Sampling
from tandem.engine.null.engine import NullEngine, NullSession
from tandem.policies.race.dispatch import DEVICE_ONLY, SERVER_ONLY
from tests.deployments.faults import Failing
from tests.deployments.modes.race.test_mode import EXPECTED, Gate, answer, job, race

pytestmark = pytest.mark.virtual_time


class _OnceSession(NullSession):
    async def call(self, operation: Operation[R]) -> R:
        if isinstance(operation, Extend):
            raise InvalidRequest("this service cannot continue an answer")
        return await super().call(operation)


class Once(NullEngine):
    """A service that answers, and cannot continue."""

    session_class = _OnceSession

    def __init__(self) -> None:
        super().__init__()
        self.info = msgspec.structs.replace(self.info, continuation="none")

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> NullSession:
        if log:
            raise InvalidRequest("this service cannot continue an answer")
        return await super().open(prompt, sampling)


async def test_its_answer_may_move_to_the_device() -> None:
    ids, origins, stats = await answer(race(Once(), NullEngine(), SERVER_ONLY, at=[5]), job())
    assert ids == EXPECTED
    assert origins == [Origin.CLOUD] * 5 + [Origin.DEVICE] * 19
    assert (Racing.of(stats).migrations, stats.replans) == (1, 0)


async def test_it_goes_on_itself_if_the_device_fails_at_the_hand_over() -> None:
    device = Failing(NullEngine(), "generate")
    ids, origins, stats = await answer(race(Once(), device, SERVER_ONLY, at=[5]), job())
    assert (ids, set(origins), device.fired) == (EXPECTED, {Origin.CLOUD}, 1)
    figures = Racing.of(stats)
    assert (figures.migrations, figures.migrations_failed, stats.replans) == (0, 1, 0)


async def test_nothing_is_handed_over_to_it() -> None:
    ids, origins, stats = await answer(race(Once(), Gate(), DEVICE_ONLY, at=[5]), job())
    assert (ids, set(origins)) == (EXPECTED, {Origin.DEVICE})
    assert (Racing.of(stats).migrations, Racing.of(stats).migrations_failed) == (0, 0)


async def test_it_takes_over_before_the_first_token() -> None:
    device = Failing(NullEngine(), "generate")
    ids, origins, _ = await answer(race(Once(), device, DEVICE_ONLY), job())
    assert (ids, set(origins), device.fired) == (EXPECTED, {Origin.CLOUD}, 1)


async def test_an_answer_that_the_device_has_begun_ends_with_it() -> None:
    device = Failing(NullEngine(), "generate", after=5)
    with pytest.raises(EngineStopped, match="no verifier can continue"):
        await answer(race(Once(), device, DEVICE_ONLY), job())
    assert device.fired == 1
