"""The buffer of what was sent: whatever is lost on the way, each frame arrives once, in order."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.wire.frames import ProtocolError
from tandem.cluster.wire.resume_buffer import ACK_BYTES, ResumeBuffer

LIMIT = 100_000


class Side:
    """One side of a connection whose frames are single bytes; None stands for an acknowledgement."""

    def __init__(self) -> None:
        self.resume_buffer = ResumeBuffer(b"name", 1.0, LIMIT)
        self.said, self.heard = bytearray(), bytearray()
        self.travelling: deque[int | tuple[int]] = (
            deque()
        )  # to the other side; in brackets: an acknowledgement

    def say(self, connected: bool) -> None:
        byte = len(self.said) % 251
        self.said.append(byte)
        assert self.resume_buffer.keep(bytearray([byte]))
        if connected:
            self.travelling.append(byte)

    def hear(self, what: int | tuple[int]) -> None:
        if isinstance(what, tuple):
            self.resume_buffer.acknowledged(what[0])
        else:
            self.resume_buffer.take(1)
            self.heard.append(what)


steps = st.lists(
    st.sampled_from(["say 0", "say 1", "hear 0", "hear 1", "ack 0", "ack 1", "break", "return"]), max_size=80
)


@given(steps)
def test_everything_arrives_once_in_order(steps: list[str]) -> None:
    sides, connected = (Side(), Side()), True

    def back() -> None:
        for one, other in (sides, sides[::-1]):
            one.resume_buffer.acknowledged(other.resume_buffer.tell())
            one.travelling.extend(one.resume_buffer.missing())

    for step in [*steps, "break", "return"]:
        what, _, which = step.partition(" ")
        one, other = sides if which != "1" else sides[::-1]
        if what == "say":
            one.say(connected)
        elif what == "hear" and one.travelling:
            other.hear(one.travelling.popleft())
        elif what == "ack" and connected:
            one.travelling.append((one.resume_buffer.tell(),))
        elif what == "break":
            connected = False
            for side in sides:
                side.travelling.clear()
        elif what == "return" and not connected:
            connected = True
            back()
        for one, other in (sides, sides[::-1]):
            assert one.said.startswith(other.heard)
            assert one.resume_buffer.sent == len(one.said)
            assert other.resume_buffer.received == len(other.heard)
    for one, other in (sides, sides[::-1]):
        while one.travelling:
            other.hear(one.travelling.popleft())
        assert other.heard == one.said
        one.resume_buffer.acknowledged(other.resume_buffer.tell())
        assert (one.resume_buffer.kept_bytes, one.resume_buffer.missing()) == (0, b"")


@given(st.lists(st.integers(0, 9_000), max_size=60), st.integers(0, 60))
def test_what_is_kept_is_bounded(sizes: list[int], received: int) -> None:
    resume_buffer, kept = ResumeBuffer(b"name", 1.0, LIMIT), b""
    for number, size in enumerate(sizes):
        data = bytearray([number] * size)
        if resume_buffer.keep(data):
            kept += data
        else:
            assert resume_buffer.kept_bytes + size + 64 > LIMIT
        assert len(resume_buffer.missing()) <= resume_buffer.kept_bytes <= LIMIT
    assert resume_buffer.missing() == kept
    received = min(received, resume_buffer.sent)
    resume_buffer.acknowledged(received)
    assert kept.endswith(resume_buffer.missing())
    resume_buffer.acknowledged(resume_buffer.sent)
    assert resume_buffer.kept_bytes == 0


def test_what_cannot_have_been_received() -> None:
    resume_buffer = ResumeBuffer(b"name", 1.0, LIMIT)
    for _ in range(5):
        resume_buffer.keep(bytearray(b"frame"))
    resume_buffer.acknowledged(3)
    for received in (2, 6):
        with pytest.raises(ProtocolError, match="received"):
            resume_buffer.acknowledged(received)
    resume_buffer.acknowledged(3)
    assert resume_buffer.missing() == b"frameframe"


def test_a_kept_frame_takes_its_data_and_64_bytes() -> None:
    resume_buffer = ResumeBuffer(b"name", 1.0, 2 * (100 + 64))
    assert (resume_buffer.sent, resume_buffer.received, resume_buffer.kept_bytes) == (0, 0, 0)
    assert resume_buffer.keep(bytearray(100))
    assert not resume_buffer.keep(bytearray(101))
    assert (resume_buffer.sent, resume_buffer.kept_bytes) == (1, 164)
    assert resume_buffer.keep(bytearray(100)), "it is just full"
    assert not resume_buffer.keep(bytearray())
    assert (resume_buffer.sent, resume_buffer.kept_bytes) == (2, 328)
    resume_buffer.acknowledged(1)
    assert (resume_buffer.sent, resume_buffer.kept_bytes) == (2, 164)


def test_the_other_side_is_told_as_soon_as_so_many_bytes_came() -> None:
    resume_buffer = ResumeBuffer(b"name", 1.0, LIMIT)
    for _ in range(2):
        assert not resume_buffer.take(ACK_BYTES - 2 * 64 - 1), "a byte less"
        assert resume_buffer.take(1)
        resume_buffer.tell()
    assert not resume_buffer.take(ACK_BYTES - 64 - 1)
    assert resume_buffer.received == 5


def test_when_it_is_time_to_tell() -> None:
    resume_buffer = ResumeBuffer(b"name", 1.0, LIMIT)
    assert not resume_buffer.take(1000)
    assert resume_buffer.take(ACK_BYTES)
    assert resume_buffer.tell() == 2
    assert not resume_buffer.take(1000)
    assert resume_buffer.tell() == 3
