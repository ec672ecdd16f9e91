"""Answers from services: one that fails in the middle is followed by another, which continues from the token log."""

from __future__ import annotations

import httpx
import pytest

from tandem.deployments.request.job import Job, JobStats
from tandem.deployments.request.timeouts import Limits, Timeouts
from tandem.engine.base import ContentFiltered, NoCapacity, Sampling
from tandem.policies.race.dispatch import BOTH
from tests.deployments.faults import World
from tests.deployments.modes.race.test_mode import race
from tests.engine.service.fake_service import DONE, TOKENIZER, Piece, Transport, chunk, engine_of, said, usage

pytestmark = pytest.mark.virtual_time

PROMPT = tuple(TOKENIZER.encode("Tell me."))
BREAKS: list[list[Piece]] = [
    [httpx.ReadError("reset")],
    [b'data: {"choices": [{"te'],
    [1e6],
    [DONE],
]
FULL = (429, {"retry-after": "60"}, [b'{"error": {"message": "too many"}}'])
LIMITS = Limits(timeouts=Timeouts(connect_s=1, open_s=1, first_s=100, step_s=100))


async def answer(
    world: World, mode: str = "cloud", device: str | None = None
) -> tuple[str, str | None, JobStats]:
    """Return an answer's text, its end and its stats."""
    ids, finish, stats = list[int](), None, JobStats()
    async for delta in world.executor.run(Job(11, PROMPT, Sampling(20), mode=mode, device=device)):
        ids += delta.ids
        finish, stats = delta.finish, delta.stats or stats
    await world.executor.settled()
    return TOKENIZER.decode(ids), finish, stats


@pytest.mark.parametrize("broken", BREAKS, ids=["reset", "half an event", "silence", "early end"])
async def test_another_service_continues(broken: list[Piece]) -> None:
    failing = Transport(said(chunk(" one"), chunk(" two"), chunk(" th"), *broken))
    second = Transport(said(chunk(" three"), chunk("", "stop"), usage(9, 4), DONE))
    text, finish, stats = await answer(World([engine_of(failing), engine_of(second)], limits=LIMITS))
    assert (text, finish, stats.replans) == (" one two three", "stop", 1)
    assert second.seen[0]["prompt"] == "Tell me. one two"
    known = len(TOKENIZER.encode_bytes(b" one two"))
    assert (stats.used.server_in, stats.used.server_out) == (len(PROMPT) + 9, known + 4)


async def test_a_full_service_sends_the_request_elsewhere() -> None:
    second = Transport(said(chunk(" one", "stop"), DONE))
    text, _, stats = await answer(World([engine_of(Transport(FULL)), engine_of(second)], limits=LIMITS))
    assert (text, stats.replans) == (" one", 1)


async def test_where_all_are_full_the_client_is_told_when_to_come_back() -> None:
    with pytest.raises(NoCapacity, match="too many") as refused:
        await answer(World([engine_of(Transport(FULL)), engine_of(Transport(FULL))], limits=LIMITS))
    assert refused.value.retry_after_s == 60.0


async def test_a_content_filter_is_passed_on() -> None:
    """No other service is asked in its place."""
    filtering = Transport(said(chunk(" one"), chunk("", "content_filter"), DONE))
    assert (await answer(World([engine_of(filtering)], limits=LIMITS)))[:2] == (" one", "content_filter")
    refusal = (400, {}, [b'{"error": {"message": "no", "code": "content_filter"}}'])
    other = Transport(said(chunk(" one", "stop"), DONE))
    with pytest.raises(ContentFiltered):
        await answer(World([engine_of(Transport(refusal)), engine_of(other)], limits=LIMITS))
    assert not other.seen


@pytest.mark.parametrize("broken", BREAKS[:2], ids=["reset", "half an event"])
async def test_a_race_goes_on_at_the_device(broken: list[Piece]) -> None:
    server = Transport(said(chunk(" one"), chunk(" two"), chunk(" th"), *broken))
    device = Transport(said(1e6), said(chunk(" three"), chunk("", "stop"), DONE))
    world = race(engine_of(server), engine_of(device), BOTH, limits=LIMITS)
    text, finish, _ = await answer(world, "race", "phone")
    assert (text, finish) == (" one two three", "stop")
    assert device.seen[-1]["prompt"] == "Tell me. one two"
