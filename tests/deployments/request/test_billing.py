"""Billing of a stopped prefill, beside the device's own measurement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.devices.device import Device
from tandem.cluster.devices.profile import load_profile
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import JobStats
from tandem.deployments.request.session import EndpointSession, Reach, RequestContext
from tandem.engine.base import Engine, NoCapacity, Sampling, Tokens, Usage
from tandem.engine.null.engine import NullEngine, NullSession
from tandem.policies.cost import PerToken
from tests.deployments.faults import PROMPT, Failing
from tests.virtual import run

PROFILE = load_profile("pixel7pro-bloom1b1")
TOKEN_S = PROFILE.prefill_s(1)
PHONE = EndpointInfo(
    "phone",
    "here:1",
    "phone",
    device=True,
    prefill_token_s=TOKEN_S,
    joules=PerToken(PROFILE.power_w * TOKEN_S, PROFILE.power_w * PROFILE.decode_s(1, 0)),
)


def session_at(endpoint: EndpointInfo, engine: Engine, stats: JobStats) -> EndpointSession:
    async def dial(_: EndpointInfo) -> Engine:
        return engine

    return EndpointSession(endpoint, RequestContext(Reach(dial), stats), False, False)


@given(tokens=st.integers(1, 400), share=st.floats(0, 0.999))
def test_a_device_is_paid_for_what_it_has_computed(tokens: int, share: float) -> None:
    device, stats = Device(NullEngine(), PROFILE), JobStats()

    async def main() -> None:
        session = session_at(PHONE, device, stats)
        await session.open((5,) * tokens, Sampling(max_tokens=4))
        await asyncio.sleep(share * PROFILE.prefill_s(tokens))
        await session.close()

    run(main())
    assert stats.joules == pytest.approx(device.energy_j, abs=PHONE.joules.prefill)
    assert stats.used.device_in <= tokens
    assert stats.used.device_out == 0


async def _decode(session: EndpointSession) -> None:
    async for _ in session.generate():
        pass


def test_an_answer_is_paid_for_in_full() -> None:
    device, stats = Device(NullEngine(), PROFILE), JobStats()

    async def main() -> None:
        session = session_at(PHONE, device, stats)
        await session.open((5,) * 100, Sampling(max_tokens=4))
        await _decode(session)
        await session.close()

    run(main())
    assert (stats.used.device_in, stats.used.device_out) == (100, 4)
    assert stats.joules == pytest.approx(device.energy_j)


@pytest.mark.parametrize("endpoint", [EndpointInfo("verifier", "here:1", "verifier"), PHONE])
async def test_who_has_no_room_takes_nothing_in(endpoint: EndpointInfo) -> None:
    stats = JobStats()
    session = session_at(endpoint, Failing(NullEngine(), "open", error=lambda: NoCapacity("full")), stats)
    with pytest.raises(NoCapacity):
        await session.open(PROMPT, Sampling())
    await session.close()
    assert (stats.used.server_in, stats.used.device_in, stats.joules) == (0, 0, 0.0)


async def test_a_server_asks_for_all_of_a_prompt() -> None:
    stats = JobStats()
    session = session_at(EndpointInfo("verifier", "here:1", "verifier"), NullEngine(), stats)
    await session.open(PROMPT, Sampling())
    await session.close()
    assert stats.used.server_in == len(PROMPT)


class _BilledSession(NullSession):
    async def generate(self) -> AsyncGenerator[Tokens, None]:
        async for tokens in super().generate():
            usage = None if tokens.finish is None else Usage(50, 60)
            yield Tokens(tokens.ids, tokens.finish, usage=usage)


class Billed(NullEngine):
    """An engine that bills like a service: by tokens of its own."""

    session_class = _BilledSession


@pytest.mark.parametrize("endpoint", [EndpointInfo("verifier", "here:1", "verifier"), PHONE])
async def test_what_a_service_bills_takes_the_place_of_our_count(endpoint: EndpointInfo) -> None:
    stats = JobStats()
    session = session_at(endpoint, Billed(), stats)
    await session.open(PROMPT, Sampling(max_tokens=4), [7])
    await _decode(session)
    await session.close()
    used = stats.used
    assert (used.server_in + used.device_in, used.server_out + used.device_out) == (50, 60)


async def test_a_stream_that_is_left_is_billed_by_our_count() -> None:
    stats = JobStats()
    session = session_at(EndpointInfo("verifier", "here:1", "verifier"), Billed(), stats)
    await session.open(PROMPT, Sampling(max_tokens=4))
    await anext(session.generate())
    await session.close()
    assert (stats.used.server_in, stats.used.server_out) == (len(PROMPT), 1)


def test_a_device_that_is_slower_than_its_figures_is_paid_for_no_more_than_the_prompt() -> None:
    """The session is stopped, still without a token, long after its figures would have had it ready."""
    stats = JobStats()

    async def main() -> None:
        session = session_at(PHONE, NullEngine(), stats)
        await session.open((5,) * 100, Sampling(max_tokens=4))
        await asyncio.sleep(10 * PROFILE.prefill_s(100))
        assert session.spared == 0
        await session.close()

    run(main())
    assert (stats.used.device_in, stats.used.device_out) == (100, 0)
