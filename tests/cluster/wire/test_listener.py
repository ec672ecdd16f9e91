"""Listeners: the addresses at which they are reached."""

from __future__ import annotations

import socket

import pytest

from tandem.cluster.wire.client import connect
from tandem.cluster.wire.listener import serve_engines
from tandem.engine.null.engine import NullEngine


def is_here(host: str) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, 0), family=family).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(("host", "name"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
async def test_a_listener_tells_where_it_is_reached(host: str, name: str) -> None:
    if not is_here(host):
        pytest.skip(f"this machine has no {host}")
    async with serve_engines({"null": NullEngine()}, f"{name}:0") as endpoint:
        told, _, port = endpoint.address.rpartition(":")
        assert (told, int(port) > 0) == (name, True)
        connection = await connect(endpoint.address)
        assert (await connection.find("null")).info == NullEngine().info
        await connection.close()


async def test_beyond_this_machine_a_token_is_needed() -> None:
    with pytest.raises(ValueError, match=r"listening on 0\.0\.0\.0, beyond this machine, needs a token"):
        async with serve_engines({"null": NullEngine()}, "0.0.0.0:0"):
            pass
    async with serve_engines({"null": NullEngine()}, "0.0.0.0:0", auth="a token of these tests"):
        pass
