"""What a device adds to its engine: the profile's speed, one job at a time, energy, a limit of sessions."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from cluster.device import Device
from cluster.profile import DeviceProfile, load_profile
from engine.base import EngineStopped, NoCapacity, Sampling, SessionCancelled
from engine.null_engine import NullEngine

EARLY_S = 0.001  # the timer may be early by less


def profile(prefill: float = 1e6, decode: float = 1e6, **more: Any) -> DeviceProfile:
    return DeviceProfile(
        name="t", hardware="t", model="t", source="t",
        prefill_tokens_per_s=prefill, decode_tokens_per_s=decode, **more,
    )  # fmt: skip


async def drain(device: Device, session: int) -> list[int]:
    return [i async for tokens in device.generate(session) for i in tokens.ids]


async def test_decodes_at_its_profiles_speed() -> None:
    engine, device = NullEngine(), Device(NullEngine(), profile(decode=200))
    for e in (engine, device):
        await e.open(1, [20], Sampling(max_tokens=20))
    start_s = time.monotonic()
    ids = await drain(device, 1)
    assert time.monotonic() - start_s >= 20 / 200 - EARLY_S
    assert ids == [i async for tokens in engine.generate(1) for i in tokens.ids]  # real tokens
    assert (await device.stats()).emulated
    assert (await device.stats()).tokens_generated == 20


async def test_prefill_comes_first() -> None:
    device = Device(NullEngine(), profile(prefill=1000, decode=1000))
    start_s = time.monotonic()
    await device.open(1, [20] * 60, Sampling(), log=[30] * 20)
    await device.draft(1, 20, [], 10)
    assert time.monotonic() - start_s >= 0.09 - EARLY_S
    start_s = time.monotonic()
    await device.extend(1, 20, [40] * 31)  # all of it new, but the last comes in with the next step
    await device.draft(1, 51, [], 1)
    assert time.monotonic() - start_s >= 0.031 - EARLY_S


async def test_what_was_drafted_right_is_not_computed_again() -> None:
    device = Device(NullEngine(), profile(prefill=2, decode=1e6))
    await device.open(1, [20], Sampling())
    draft = await device.draft(1, 0, [], 8)
    start_s = time.monotonic()
    await device.draft(1, 0, [*draft.ids, 77], 1)
    assert time.monotonic() - start_s < 0.4  # one more token to compute would take 0.5 s
    await device.draft(1, 4, [78, 79], 1)
    assert time.monotonic() - start_s >= 0.5 - EARLY_S


async def test_verifies_as_a_short_prefill() -> None:
    device = Device(NullEngine(), profile(prefill=100, decode=50))
    await device.open(1, [20], Sampling())
    await device.verify(1, [])
    for drafts, least_s in ((0, 0.02), (4, 0.05)):
        start_s = time.monotonic()
        await device.verify(1, [1] * drafts)
        assert time.monotonic() - start_s >= least_s - EARLY_S


async def test_one_job_at_a_time() -> None:
    device = Device(NullEngine(), profile(decode=200, sessions=4))
    for session in range(4):
        await device.open(session, [20], Sampling(max_tokens=5))
    start_s = time.monotonic()
    await asyncio.gather(*(drain(device, session) for session in range(4)))
    assert time.monotonic() - start_s >= 20 / 200 - 4 * EARLY_S


async def test_cancelling_frees_it_at_once() -> None:
    """The first session's prefill would take 1,000 s; both its turn and its waiting end."""
    device = Device(NullEngine(), profile(prefill=0.001))
    await device.open(1, [20], Sampling())
    waiting = asyncio.create_task(device.draft(1, 0, [], 4))
    await asyncio.sleep(0)
    await device.cancel(1)
    async with asyncio.timeout(5):
        with pytest.raises(SessionCancelled):
            await waiting
        assert not device._processor.locked()
    assert device.sessions == 0


async def test_limit_of_sessions() -> None:
    device = Device(NullEngine(), profile(sessions=1))
    await device.open(1, [20], Sampling())
    with pytest.raises(NoCapacity):
        await device.open(2, [20], Sampling())
    await device.cancel(1)
    await device.open(2, [20], Sampling())


async def test_devices_share_an_engine() -> None:
    engine = NullEngine()
    first, second = (Device(engine, load_profile("native")) for _ in "ab")
    for device in (first, second):
        await device.open(1, [20], Sampling(max_tokens=3))  # the same session at both
    assert await drain(first, 1) == await drain(second, 1)
    await first.close()
    assert (await second.stats()).sessions == 1
    await second.verify(1, [])


async def test_energy_and_battery() -> None:
    device = Device(NullEngine(), profile(decode=100, power_w=5.0, battery_wh=0.5 / 3600))
    assert device.battery == 1.0
    await device.open(1, [20], Sampling(max_tokens=50))
    await device.draft(1, 0, [], 2)
    stats = await device.stats()
    assert stats.energy_j == pytest.approx(5.0 * stats.step_s)
    assert stats.step_s >= 0.02 - EARLY_S
    while device.battery:
        await device.draft(1, 0, [], 2)
    for operation in (device.draft(1, 0, [], 2), device.open(2, [20], Sampling())):
        with pytest.raises(EngineStopped, match="battery"):
            await operation


async def test_native_speed_is_the_engines() -> None:
    device = Device(NullEngine(), load_profile("native"))
    await device.open(1, [20] * 100, Sampling(max_tokens=100))
    assert len(await drain(device, 1)) == 100
    stats = await device.stats()
    assert (stats.emulated, stats.energy_j, device.battery) == (False, 0.0, None)
    assert stats.step_s > 0
