"""A connection's signs of life, stalls and breaks, in virtual time over a transport that only remembers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.cluster.wire.frames import HEADER, AnyFrame, Error, Ping, Pong, decode, encode
from tandem.cluster.wire.resume_buffer import ResumeBuffer
from tandem.cluster.wire.wire import Wire, WireSettings
from tests.virtual import now_s

pytestmark = pytest.mark.virtual_time

SETTINGS = WireSettings(timeout_s=8.0, hello_s=5.0, silence_s=10.0, max_kept=8 * 1024 * 1024)


class Transport(asyncio.Transport):
    """Remembers what was written, and takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False
        self.wrote = asyncio.Event()

    def write(self, data: Any) -> None:
        self.written += data
        self.wrote.set()

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def set_protocol(self, protocol: object) -> None: ...

    def resume_reading(self) -> None: ...

    def taken(self) -> list[AnyFrame]:
        """The frames written since the last call."""
        data, self.written = bytes(self.written), bytearray()
        frames = []
        while data:
            size, _ = HEADER.unpack_from(data)
            frames.append(decode(data[HEADER.size : HEADER.size + size]))
            data = data[HEADER.size + size :]
        return frames


class Plain(Wire):
    """A connection that carries nothing."""

    def received(self, frame: AnyFrame, size_bytes: int) -> None: ...

    def parted(self) -> None: ...

    def lost(self) -> None: ...

    def check(self, now_s: float) -> None: ...

    def hear(self, frame: Any) -> None:
        """Take in a frame of the other side."""
        data = encode(frame)
        self.get_buffer(len(data))[: len(data)] = data
        self.buffer_updated(len(data))


def wire(resume_buffer: ResumeBuffer | None = None) -> tuple[Plain, Transport]:
    made, transport = Plain(SETTINGS, resume_buffer), Transport()
    made.attach(transport)
    return made, transport


def resume_buffer() -> ResumeBuffer:
    return ResumeBuffer(b"secret", resume_s=60.0, limit_bytes=SETTINGS.max_kept)


async def beyond(wire: Plain, until_s: float) -> None:
    """Hear a ping every second up to a time."""
    while now_s() < until_s:
        await asyncio.sleep(1.0)
        wire.hear(Ping(0, 0, 0))


async def test_silence_ends_it() -> None:
    made, _ = wire()
    await asyncio.sleep(SETTINGS.silence_s + 3.0)
    assert made.ended
    assert "nothing heard" in made.reason


async def test_a_process_that_was_busy_gives_the_other_side_another_chance() -> None:
    """Frames that arrived meanwhile have not been read yet."""
    made, transport = wire()
    made._tick.cancel()
    await asyncio.sleep(3 * SETTINGS.silence_s)
    made._check()  # its timer comes late
    await asyncio.sleep(2.0)
    assert not made.ended
    await asyncio.sleep(SETTINGS.silence_s)
    assert made.ended, "but only one"
    assert transport.closed


async def test_a_reader_that_stalls_is_to_blame_while_it_is_heard() -> None:
    made, transport = wire()
    made.pause_writing()
    await beyond(made, SETTINGS.timeout_s + 3.0)
    assert made.ended
    assert [type(frame) for frame in transport.taken()][-1] is Error
    assert "reader stalled" in made.reason


async def test_a_silent_link_is_to_blame_for_a_stall() -> None:
    """The connection is then away, and may be resumed: its reader may be well."""
    made, _ = wire(resume_buffer())
    made.pause_writing()
    await beyond(made, SETTINGS.timeout_s / 2 - 1.0)
    await asyncio.sleep(SETTINGS.timeout_s / 2 + 3.0)
    assert made.away
    assert "nothing was taken" in made.reason


async def test_writers_wait_sooner_while_it_is_away_and_only_then() -> None:
    made, _ = wire(resume_buffer())
    made.part("cut")
    made.send(bytearray(2 * 1024 * 1024))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await made.writable()
    made.resume(Transport(), received=0)
    async with asyncio.timeout(1.0):
        await made.writable()
    made.send(bytearray(1024 * 1024))  # no less than before the break
    async with asyncio.timeout(1.0):
        await made.writable()


async def test_the_round_trip_time_is_the_lower_quartile_of_the_pings() -> None:
    """A ping delayed by a busy machine says nothing about the link."""
    made, transport = wire()
    for late_s in (0.5, 0.04, 0.02, 0.3, 0.1, 0.2):
        while not (timed := [f.seq for f in transport.taken() if isinstance(f, Ping) and f.seq]):
            transport.wrote.clear()
            await transport.wrote.wait()
        await asyncio.sleep(late_s)
        made.hear(Pong(0, timed[0], 0))
    assert made.rtt_s == pytest.approx(0.04, abs=0.005)


@pytest.mark.parametrize(("resume_s", "late_s"), [(0.4, 0.1), (0.1, 0.05), (60.0, 1.0)])
async def test_a_connection_that_is_away_is_given_up_a_quarter_late_at_most(
    resume_s: float, late_s: float
) -> None:
    made, _ = wire(ResumeBuffer(b"secret", resume_s=resume_s, limit_bytes=SETTINGS.max_kept))
    made.part("cut")
    await asyncio.sleep(resume_s - 1e-3)
    assert not made.ended
    await asyncio.sleep(late_s + 2e-3)
    assert made.ended


@pytest.mark.parametrize("resumable", [False, True])
async def test_a_connection_that_is_away_or_closed_answers_nothing(resumable: bool) -> None:
    made, transport = wire(resume_buffer() if resumable else None)
    if resumable:
        made.part("cut")
    else:
        closing = asyncio.create_task(made.close())
        await asyncio.sleep(0)
    transport.taken()
    began_s = now_s()
    assert not await made.answers(5.0)
    assert now_s() == began_s
    assert transport.taken() == []
    if not resumable:
        made.connection_lost(None)
        await closing
