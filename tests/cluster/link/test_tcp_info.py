"""Rate and loss of a connection, as the kernel tells them."""

from __future__ import annotations

import struct

from tandem.cluster.link.state import LinkState
from tandem.cluster.link.tcp_info import measured, parsed
from tandem.cluster.wire.client import connect
from tandem.cluster.wire.listener import serve_engines
from tandem.engine.null.engine import NullEngine


def info(again: int, sent: int, rate: int) -> bytes:
    told = bytearray(232)
    struct.pack_into("=I", told, 100, again)
    struct.pack_into("=I", told, 156, sent)
    struct.pack_into("=Q", told, 160, rate)
    return bytes(told)


def test_rate_and_loss_are_told_to_two_digits() -> None:
    assert parsed(info(3, 1000, 123_456)) == LinkState(None, 120_000.0, 0.003)
    assert parsed(info(0, 0, 0)) == LinkState()
    assert parsed(info(9, 3, 1)) == LinkState(None, 1.0, 1.0)
    assert parsed(info(3, 1000, 123_456)[:104]) is None


async def test_of_a_connection() -> None:
    async with serve_engines({"engine": NullEngine()}) as endpoint:
        connection = await connect(endpoint.address)
        link = connection.link
        assert link is None or (link.loss == 0.0 and link.up_bytes_per_s is None)
        await connection.close()
        assert connection.link is None
    assert measured(None) is None
