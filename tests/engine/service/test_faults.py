"""Faults of a service, in virtual time: limits, silence, resets and broken events."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tandem.engine.base import EngineStopped, NoCapacity, Sampling
from tandem.engine.service.client import ServiceClient
from tests import engine_contract
from tests.engine.service.fake_service import (
    DONE,
    TOKENIZER,
    Piece,
    Transport,
    chunk,
    config,
    engine_of,
    event,
    said,
    usage,
)

pytestmark = pytest.mark.virtual_time
PROMPT = TOKENIZER.encode("Tell me.")
GOOD: list[Piece] = [chunk(" one"), chunk("", "stop"), usage(3, 1), DONE]
FULL = (429, {"retry-after": "3"}, [b'{"error": {"message": "too many", "code": "rate_limit_exceeded"}}'])


async def ask(transport: Transport, **settings: object) -> str:
    """Return an answer's text."""
    engine = engine_of(transport, **settings)
    try:
        async with engine_contract.session(engine, PROMPT, Sampling(9)) as s:
            return TOKENIZER.decode((await engine_contract.drain(s))[0])
    finally:
        await engine.close()


@pytest.mark.parametrize(
    ("pieces", "why", "took_s"),
    [
        ([1e6], "no token within 60 s", 60.0),
        ([20.0, b": still waiting\n\n", 1e6], "no token within 60 s", 60.0),
        ([5.0, chunk(" one"), 1e6], "silent for 30 s", 35.0),
        ([5.0, chunk(" one"), 20.0, chunk(" two"), 1e6], "silent for 30 s", 55.0),
    ],
)
async def test_silence_is_not_waited_for(pieces: list[Piece], why: str, took_s: float) -> None:
    transport, loop = Transport(said(*pieces)), asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(EngineStopped, match=why):
        await ask(transport)
    assert loop.time() - began_s == pytest.approx(took_s)
    assert transport.closed == 1


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [chunk(" one")],
        [chunk(" one")[:-9]],
        [chunk(" one"), b"data: {"],
        [chunk(" one"), event(b'{"choices": 5}')],
        [chunk(" one"), event(b"\xff")],
        [chunk(" one"), DONE],
        [chunk(" one"), httpx.ReadError("reset")],
        [chunk(" one"), event({"error": {"message": "out of memory"}})],
        [b"data: " + b"x" * (5 * 2**20)],
    ],
)
async def test_a_broken_stream_is_a_lost_endpoint(pieces: list[Piece]) -> None:
    transport = Transport(said(*pieces))
    with pytest.raises(EngineStopped):
        await ask(transport)
    assert transport.closed == 1


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ConnectTimeout("late")])
async def test_a_service_that_cannot_be_reached_is_a_lost_endpoint(error: Exception) -> None:
    with pytest.raises(EngineStopped, match=r"service\.test/v1 failed: Connect"):
        await ask(Transport(error))


async def test_what_came_before_a_break_stands_and_is_continued() -> None:
    transport = Transport(
        said(chunk(" one"), chunk(" two"), chunk(" x"), httpx.ReadError("reset")), said(*GOOD)
    )
    engine = engine_of(transport)
    session = await engine.open(PROMPT, Sampling(9))
    got: list[int] = []

    async def listen() -> None:
        async for tokens in session.generate():
            got.extend(tokens.ids)

    with pytest.raises(EngineStopped):
        await listen()
    assert TOKENIZER.decode(got) == " one two"
    assert await engine_contract.drain(session) == (TOKENIZER.encode_bytes(b" one"), "stop")
    assert transport.seen[1]["prompt"] == "Tell me. one two"
    await session.cancel()
    await engine.close()


async def test_an_event_may_come_in_any_pieces() -> None:
    data = b"".join(piece for piece in GOOD if isinstance(piece, bytes)).replace(b"\n", b"\r\n")
    assert await ask(Transport(said(*(data[i : i + 1] for i in range(len(data)))))) == " one"


async def test_unicode_that_ends_lines_elsewhere_is_text() -> None:
    text = " a\u2028b\x85c"
    piece = f'data: {{"choices": [{{"text": "{text}", "finish_reason": "stop"}}]}}\n\n'.encode()
    assert await ask(Transport(said(piece, DONE))) == text


async def test_a_full_service_is_asked_again_within_the_limit() -> None:
    transport, loop = Transport(FULL, said(*GOOD)), asyncio.get_running_loop()
    began_s = loop.time()
    assert await ask(transport) == " one"
    assert loop.time() - began_s == pytest.approx(3.0)


async def test_the_times_of_an_answer_are_counted() -> None:
    slow = said(2.0, chunk(" one"), 5.0, chunk("", "stop"), usage(3, 1), DONE)
    engine = engine_of(Transport(FULL, slow))
    async with engine_contract.session(engine, PROMPT, Sampling(9)) as s:
        await engine_contract.drain(s)
    stats = await engine.stats()
    served = stats.served
    totals = [each.total for each in (served.queue_s, served.prefill_s, served.inference_s)]
    assert totals == pytest.approx([3.0, 2.0, 7.0])
    assert stats.first_token_s == pytest.approx(2.0)
    await engine.close()


async def test_a_service_that_stays_full_refuses() -> None:
    transport, loop = Transport(FULL, FULL), asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(NoCapacity, match="too many") as caught:
        await ask(transport)
    assert caught.value.retry_after_s == 3.0
    assert loop.time() - began_s == pytest.approx(3.0)


async def test_what_the_service_asks_for_holds_for_other_sessions() -> None:
    transport, loop = Transport(FULL, said(*GOOD)), asyncio.get_running_loop()
    engine = engine_of(transport, rate_limit={"wait_s": 2.0})
    with pytest.raises(NoCapacity):
        async with engine_contract.session(engine, PROMPT, Sampling(9)) as s:
            await engine_contract.drain(s)
    with pytest.raises(NoCapacity, match="used up"):
        await engine.open(PROMPT, Sampling(9))
    assert len(transport.seen) == 1
    assert (await engine.stats()).rest_s == pytest.approx(3.0)
    await asyncio.sleep(1.5)
    began_s = loop.time()
    async with engine_contract.session(engine, PROMPT, Sampling(9)) as s:
        await engine_contract.drain(s)
    assert loop.time() - began_s == pytest.approx(1.5)
    await engine.close()


async def test_requests_keep_the_limits() -> None:
    loop = asyncio.get_running_loop()
    engine = engine_of(
        Transport(*[said(*GOOD) for _ in range(3)]), rate_limit={"requests_per_minute": 2, "wait_s": 40}
    )
    began_s, times_s = loop.time(), []
    for _ in range(3):
        async with engine_contract.session(engine, PROMPT, Sampling(9)) as s:
            times_s.append(loop.time() - began_s)
            await engine_contract.drain(s)
    assert times_s == pytest.approx([0.0, 0.0, 30.0])
    await engine.close()


async def test_tokens_keep_the_limits() -> None:
    loop = asyncio.get_running_loop()
    per_minute = 2 * len(PROMPT)
    transport = Transport(*[said(*GOOD) for _ in range(2)])
    engine = engine_of(transport, rate_limit={"tokens_per_minute": per_minute, "wait_s": 60})
    async with engine_contract.session(engine, PROMPT, Sampling(9)) as s:
        spent = len(PROMPT) + len((await engine_contract.drain(s))[0])
    async with engine_contract.session(engine, PROMPT, Sampling(9)) as s:
        waited_s = loop.time()
        await engine_contract.drain(s)
    assert waited_s == pytest.approx((len(PROMPT) - (per_minute - spent)) / per_minute * 60.0)
    await engine.close()


@pytest.mark.parametrize(
    ("header", "retry_s"), [("x", 1.0), ("-3", 0.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0)]
)
async def test_a_strange_retry_after_is_survived(header: str, retry_s: float) -> None:
    client = ServiceClient(config(), Transport((429, {"retry-after": header}, [b"<html>no</html>"])))
    with pytest.raises(NoCapacity, match="<html>no</html>") as caught:
        await anext(client.stream({}))
    assert caught.value.retry_after_s == retry_s
    await client.close()
