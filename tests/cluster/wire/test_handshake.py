"""Reading a first frame: exactly one, however its bytes come, and nothing after it."""

from __future__ import annotations

import asyncio
import socket
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.wire.frames import HEADER, VERSION, AnyFrame, Hello, ProtocolError, encode
from tandem.cluster.wire.handshake import Greeting

HELLO = Hello(0, 0, "", "token" * 2000, {})
DATA = bytes(encode(HELLO))


class Heard(Greeting):
    def __init__(self, limit_bytes: int = len(DATA) - HEADER.size) -> None:
        super().__init__(limit_bytes)
        self.heard: list[AnyFrame | str] = []
        self.connection_made(Mock(asyncio.Transport, get_extra_info=Mock(return_value=None)))

    def came(self, frame: AnyFrame) -> None:
        self.heard.append(frame)

    def failed(self, error: ProtocolError) -> None:
        self.heard.append(str(error))

    def receive(self, data: bytes, most: int) -> int:
        """Take in bytes, at most so many at once, until reading is paused; return their number."""
        at = 0
        while at < len(data) and not self.transport.pause_reading.called:  # type: ignore[attr-defined]
            buffer = self.get_buffer(-1)
            assert 0 < len(buffer) <= 4096
            size = min(most, len(buffer), len(data) - at)
            buffer[:size] = data[at : at + size]
            self.buffer_updated(size)
            at += size
        return at


@given(st.integers(1, 5000))
def test_one_frame_is_read_and_no_byte_after_it(most: int) -> None:
    greeting = Heard()
    assert greeting.receive(DATA + DATA, most) == len(DATA)
    assert greeting.heard == [HELLO]
    greeting.connection_lost(None)
    assert greeting.heard == [HELLO], "what follows is another protocol's"


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (HEADER.pack(1, VERSION + 1), f"frame format version {VERSION + 1} is not {VERSION}"),
        (HEADER.pack(len(DATA), VERSION), f"a frame of {len(DATA)} bytes exceeds {len(DATA) - HEADER.size}"),
    ],
)
def test_what_a_header_must_not_say(header: bytes, error: str) -> None:
    greeting = Heard()
    assert greeting.receive(header + DATA, 100) == HEADER.size
    assert greeting.heard == [error]
    greeting.connection_lost(None)
    assert greeting.heard == [error]


def test_an_empty_frame_is_none() -> None:
    greeting = Heard()
    greeting.receive(HEADER.pack(0, VERSION), 100)
    assert len(greeting.heard) == 1
    assert isinstance(greeting.heard[0], str)


@pytest.mark.parametrize("received", [0, HEADER.size - 1, HEADER.size, len(DATA) - 1])
def test_a_connection_that_is_lost_before_says_so(received: int) -> None:
    greeting = Heard()
    greeting.receive(DATA[:received], 100)
    assert greeting.heard == []
    greeting.connection_lost(None)
    assert greeting.heard == ["the other side closed the connection before hello"]


def test_small_frames_are_sent_at_once() -> None:
    greeting = Heard()
    with socket.socket() as tcp:
        greeting.connection_made(Mock(asyncio.Transport, get_extra_info=Mock(return_value=tcp)))
        assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
