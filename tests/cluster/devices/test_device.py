"""Device around an engine: another hardware's speed, one job at a time, energy, a limit of sessions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandem.cluster.devices.device import BLOCK, Device, shared_prefix
from tandem.cluster.devices.profile import DeviceProfile, load_profile
from tandem.engine.base import (
    EngineStopped,
    Forward,
    Forwarded,
    NoCapacity,
    Sampling,
    Session,
    SessionCancelled,
    Tensor,
)
from tandem.engine.null.engine import NullEngine, NullSession
from tests.virtual import in_virtual_time, now_s


def profile(prefill: float = 1e6, decode: float = 1e6, **more: Any) -> DeviceProfile:
    return DeviceProfile(
        name="t", hardware="t", model="t", source="t",
        prefill_tokens_per_s=prefill, decode_tokens_per_s=decode, **more,
    )  # fmt: skip


async def drain(session: Session) -> list[int]:
    return [i async for tokens in session.generate() for i in tokens.ids]


async def test_decodes_at_its_profiles_speed() -> None:
    """In real time, as all else here in virtual time."""
    device = Device(NullEngine(), profile(decode=200))
    s = await device.open([20], Sampling(max_tokens=20))
    start_s = time.monotonic()
    await drain(s)
    assert time.monotonic() - start_s >= 20 / 200 - 0.001  # the timer may be early by less


@in_virtual_time
async def test_times_are_emulated_and_tokens_are_real() -> None:
    engine, device = NullEngine(), Device(NullEngine(), profile(decode=200))
    real, slow = [await e.open([20], Sampling(max_tokens=20)) for e in (engine, device)]
    began_s, times_s, ids = now_s(), list[float](), list[int]()
    async for tokens in slow.generate():
        times_s.append(now_s() - began_s)
        ids += tokens.ids
    assert times_s == pytest.approx([1e-6 + n / 200 for n in range(1, 21)], abs=1e-9)
    assert ids == await drain(real)
    stats = await device.stats()
    assert (stats.emulated, stats.tokens_generated, stats.opened) == (True, 20, 1)


@in_virtual_time
async def test_an_engine_that_takes_longer_is_not_slowed_further() -> None:
    device = Device(NullEngine(tokens_per_s=10), profile(decode=20))
    s = await device.open([20], Sampling(max_tokens=20))
    await drain(s)
    assert now_s() == pytest.approx(2.0, abs=1e-4)


@in_virtual_time
async def test_prefill_comes_first() -> None:
    device = Device(NullEngine(), profile(prefill=1000, decode=1000))
    s = await device.open([20] * 60, Sampling(), log=[30] * 20)
    await s.draft(20, [], 10)
    assert now_s() == pytest.approx(0.09)
    await s.extend(20, [40] * 31)  # all of it new, but the last comes in with the next step
    assert now_s() == pytest.approx(0.09)
    await s.draft(51, [], 1)
    assert now_s() == pytest.approx(0.09 + 0.03 + 0.001)


@in_virtual_time
async def test_prefill_begins_when_the_session_is_opened() -> None:
    device = Device(NullEngine(), profile(prefill=100, decode=1000))
    s = await device.open([20] * 50, Sampling())
    await asyncio.sleep(0.4)
    await s.draft(0, [], 1)
    assert now_s() == pytest.approx(0.5 + 0.001)


@in_virtual_time
async def test_a_beginning_that_is_known_is_not_taken_in_again() -> None:
    device = Device(NullEngine(), profile(prefill=10, decode=1e6))
    question = list(range(100, 140))

    async def taken_in_s(*end: int) -> tuple[float, Session]:
        began_s = now_s()
        session = await device.open([*question, *end], Sampling())
        await session.draft(0, [], 1)
        return pytest.approx(now_s() - began_s, abs=1e-3), session

    seconds, first = await taken_in_s(*range(10))
    assert seconds == 5.0
    seconds, second = await taken_in_s(*range(20, 30))
    assert seconds == 5.0 - 3.2, "two blocks of the first session's, which goes on"
    await first.cancel()
    await second.cancel()
    seconds, third = await taken_in_s(*range(20, 32))
    assert seconds == 5.2 - 4.8, "three blocks of the last session's, which is over"
    await (await device.open([7] * 50, Sampling())).cancel()
    assert (await taken_in_s(9))[0] == 4.1 - 3.2, "what was not taken in to its end is not kept"
    await third.cancel()
    assert (await device.stats()).tokens_from_prefix == 32 + 48 + 32


@given(
    st.lists(st.integers(0, 1), max_size=100), st.lists(st.integers(0, 1), max_size=100), st.integers(0, 100)
)
@example(prompt=[], other=[0] * 17, same=0)
def test_what_two_prompts_share(prompt: list[int], other: list[int], same: int) -> None:
    other = prompt[:same] + other
    tokens = shared_prefix(prompt, other)
    assert prompt[:tokens] == other[:tokens]
    assert tokens % BLOCK == 0
    assert tokens < max(1, len(prompt))
    more = tokens + BLOCK
    assert more >= len(prompt) or more > len(other) or prompt[:more] != other[:more], "as much as there is"


@in_virtual_time
async def test_what_was_drafted_right_is_not_computed_again() -> None:
    device = Device(NullEngine(), profile(prefill=2, decode=1e6))
    s = await device.open([20], Sampling())
    draft = await s.draft(0, [], 8)
    start_s = now_s()
    await s.draft(0, [*draft.ids, 77], 1)
    assert now_s() - start_s < 0.4  # one more token to compute would take 0.5 s
    await s.draft(4, [78, 79], 1)
    assert now_s() - start_s >= 0.5


@in_virtual_time
async def test_verifies_as_a_short_prefill() -> None:
    device = Device(NullEngine(), profile(prefill=100, decode=50))
    s = await device.open([20], Sampling())
    await s.verify([])
    for drafts, seconds in ((0, 0.02), (4, 0.05)):
        start_s = now_s()
        await s.verify([1] * drafts)
        assert now_s() - start_s == pytest.approx(seconds)


class Middle(NullEngine):
    class Session(NullSession):
        async def _forward(self, operation: Forward) -> Forwarded:
            return Forwarded(operation.hidden, 30, 0.02)

    session_class = Session

    def __init__(self) -> None:
        super().__init__()
        self.info = msgspec.structs.replace(self.info, capabilities=("forward",))

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> NullSession:
        return self.session_class(self, prompt, sampling, log)


@in_virtual_time
async def test_hidden_states_take_as_long_as_a_short_prefill() -> None:
    device = Device(Middle(), profile(prefill=100, decode=50))
    s = await device.open([], Sampling())
    start_s = now_s()
    hidden = Tensor.of(np.zeros((8, 4), np.float32))
    forwarded = await s.forward(0, hidden, 8)
    assert (forwarded.hidden, forwarded.batch_tokens) == (hidden, 30)
    assert (forwarded.batch_s, forwarded.took_s) == (pytest.approx(0.08), pytest.approx(0.08))
    assert now_s() - start_s == pytest.approx(0.08)
    stats = await device.stats()
    assert (stats.tokens_prefilled, stats.tokens_from_prefix) == (0, 0), "an empty prompt has no prefill"


class Tables:
    """A speed that depends on the context."""

    name, power_w, emulated, sessions, batch, battery_wh = "tables", 0.0, True, 4, 1, None

    def __init__(self) -> None:
        self.contexts: list[int] = []

    def prefill_s(self, tokens: int) -> float:
        return 0.0

    def decode_s(self, tokens: int, context: int, sequences: int = 1) -> float:
        self.contexts.append(context)
        return tokens * context / 1000


@in_virtual_time
async def test_any_object_that_knows_times_is_a_speed() -> None:
    """The context of a step: what the KV cache holds before it."""
    speed = Tables()
    s = await Device(NullEngine(), speed).open([20] * 10, Sampling(max_tokens=50), [30] * 2)
    stream = s.generate()
    await anext(stream)
    await anext(stream)
    await stream.aclose()
    await s.draft(4, [40, 41], 3)
    await s.draft(0, [50], 1)  # rolled back
    assert speed.contexts == [12, 13, 16, 11]
    assert now_s() == pytest.approx((12 + 13 + 3 * 16 + 11) / 1000)


@in_virtual_time
async def test_one_job_at_a_time() -> None:
    device = Device(NullEngine(), profile(decode=200, sessions=4))
    sessions = [await device.open([20], Sampling(max_tokens=5)) for _ in range(4)]
    ended_s: list[float] = []

    async def run(s: Session) -> None:
        await drain(s)
        ended_s.append(now_s())

    await asyncio.gather(*map(run, sessions))
    assert ended_s == pytest.approx([n / 200 for n in (17, 18, 19, 20)], abs=1e-4)  # token by token, in turn


@in_virtual_time
async def test_it_decodes_a_batch_at_once_and_takes_in_prompts_between() -> None:
    device = Device(NullEngine(), profile(prefill=10, decode=200, sessions=5, batch=2))
    sessions = [await device.open([20], Sampling(max_tokens=5)) for _ in range(4)]
    ended_s: list[float] = []

    async def run(s: Session) -> None:
        await drain(s)
        ended_s.append(now_s())

    running = [asyncio.create_task(run(s)) for s in sessions]
    await asyncio.sleep(0.4 + 0.011)  # the prefills, and two steps
    late = await device.open([20] * 10, Sampling(max_tokens=1))
    await asyncio.gather(*running)
    assert ended_s == pytest.approx([1.4 + n / 200 for n in (9, 9, 10, 10)], abs=1e-4)
    await drain(late)
    assert device.processor.busy_s == pytest.approx(1.4 + 11 / 200, abs=1e-4)


@in_virtual_time
async def test_a_step_over_more_sequences_may_take_longer() -> None:
    class Growing(Tables):
        batch = 3

        def decode_s(self, tokens: int, context: int, sequences: int = 1) -> float:
            return tokens * sequences

    device = Device(NullEngine(), Growing())
    sessions = [await device.open([20], Sampling()) for _ in range(3)]
    await asyncio.gather(*(s.draft(0, [], 2) for s in sessions))
    assert now_s() == pytest.approx(2 * 3)


@in_virtual_time
async def test_cancelling_frees_it_at_once() -> None:
    """The first session's prefill would take 1,000 s; both its turn and its waiting end."""
    device = Device(NullEngine(), profile(prefill=0.001, power_w=2.0))
    s = await device.open([20], Sampling())
    waiting = asyncio.create_task(s.draft(0, [], 4))
    await asyncio.sleep(10.0)
    await s.cancel()
    with pytest.raises(SessionCancelled):
        await waiting
    assert not device.processor._running
    assert (device.sessions, now_s()) == (0, pytest.approx(10.0))
    assert device.energy_j == pytest.approx(20.0)  # the prefill, as far as it got


STAGES = ("its prefill", "its turn", "the engine", "the emulated time")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("how", ["session", "caller", "device"])
@in_virtual_time
async def test_cancelling_at_any_moment_frees_the_processor(stage: str, how: str) -> None:
    """Cancel in either way and at any wait of the operation; the next one goes on."""
    engine = NullEngine(tokens_per_s=1.0 if stage == "the engine" else None)
    device = Device(engine, profile(prefill=1.0 if stage == "its prefill" else 1e6, decode=0.5))
    other = await device.open([20], Sampling())
    if stage == "its turn":
        ahead = asyncio.create_task(other.draft(0, [], 1))
        await asyncio.sleep(0.001)
    s = await device.open([20] * 3, Sampling())
    operation = asyncio.create_task(s.draft(0, [], 1))
    await asyncio.sleep(1.5 if stage == "its prefill" else 0.9)
    late = await device.open([21], Sampling())
    behind = asyncio.create_task(late.draft(0, [], 1))
    await asyncio.sleep(0)
    began_s = now_s()
    if how == "session":
        await s.cancel()
    elif how == "caller":
        operation.cancel()
    else:
        await device.close()
    expected = {"session": SessionCancelled, "caller": asyncio.CancelledError, "device": EngineStopped}[how]
    with pytest.raises(expected):
        await operation
    assert now_s() == began_s
    if how == "device":
        with pytest.raises(EngineStopped):
            await behind
        if stage == "its turn":
            with pytest.raises(EngineStopped):
                await ahead
    else:
        assert (await behind).ids
        if stage == "its turn":
            assert (await ahead).ids
    assert not device.processor._running
    assert (await engine.stats()).sessions == (0 if how == "device" else 3 if how == "caller" else 2)


@in_virtual_time
async def test_closing_it_while_a_session_opens() -> None:
    class Slow(NullEngine):
        async def open(
            self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
        ) -> NullSession:
            await asyncio.sleep(1.0)
            return await super().open(prompt, sampling, log)

    engine = Slow()
    device = Device(engine, profile())
    opening = asyncio.create_task(device.open([20], Sampling()))
    await asyncio.sleep(0.5)
    assert device.sessions == 1  # its place is taken
    await device.close()
    with pytest.raises(EngineStopped):
        await opening
    assert (await engine.stats()).sessions == device.sessions == 0


@in_virtual_time
async def test_limit_of_sessions() -> None:
    device = Device(NullEngine(), profile(sessions=1))
    s = await device.open([20], Sampling())
    with pytest.raises(NoCapacity):
        await device.open([20], Sampling())
    await s.cancel()
    await device.open([20], Sampling())


@in_virtual_time
async def test_devices_share_an_engine() -> None:
    engine = NullEngine()
    first, second = (Device(engine, load_profile("native")) for _ in "ab")
    s, t = [await device.open([20], Sampling(max_tokens=3)) for device in (first, second)]
    assert await drain(s) == await drain(t)
    await first.close()
    assert (await second.stats()).sessions == 1
    await t.verify([])


@in_virtual_time
async def test_energy_and_battery() -> None:
    device = Device(NullEngine(), profile(decode=100, power_w=5.0, battery_wh=0.5 / 3600))
    assert device.battery == 1.0
    s = await device.open([20], Sampling(max_tokens=50))
    await s.draft(0, [], 2)
    stats = await device.stats()
    assert stats.energy_j == pytest.approx(5.0 * stats.step_s)
    assert stats.step_s == pytest.approx(0.02, abs=1e-5)
    await asyncio.sleep(10)  # idle: costs nothing
    while device.battery:
        await s.draft(0, [], 2)
    assert device.energy_j == pytest.approx(0.5, abs=0.1)
    for operation in (s.draft(0, [], 2), device.open([20], Sampling())):
        with pytest.raises(EngineStopped, match="battery"):
            await operation


@in_virtual_time
async def test_native_speed_is_the_engines() -> None:
    device = Device(NullEngine(tokens_per_s=100), load_profile("native"))
    streams = [await device.open([20] * 100, Sampling(max_tokens=100)) for _ in "ab"]
    assert [len(ids) for ids in await asyncio.gather(*map(drain, streams))] == [100, 100]
    stats = await device.stats()
    assert (stats.emulated, stats.energy_j, device.battery) == (False, 0.0, None)
    assert stats.step_s == pytest.approx(1.0) == now_s()  # both at once
