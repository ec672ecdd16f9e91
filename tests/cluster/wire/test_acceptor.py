"""Acceptor: which connections an endpoint lets begin and resume."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from tandem.cluster.wire import frames
from tandem.cluster.wire.acceptor import HELLO_BYTES, UNPROVEN, Acceptor
from tandem.cluster.wire.client import Connection, connect
from tandem.cluster.wire.frames import HEADER, VERSION, Unauthorized
from tandem.cluster.wire.listener import serve_engines
from tandem.cluster.wire.tls import contexts
from tandem.cluster.wire.wire import WireSettings
from tandem.engine.base import EngineError, EngineStopped, Sampling
from tandem.engine.null.engine import NullEngine
from tests.cluster.certificate import make_certificate
from tests.cluster.proxy import proxy_to
from tests.cluster.raw import raw
from tests.cluster.wire.test_dialer import PATIENT, until


class Register:
    """Owners of tokens. go: event that answers wait for; asked: tokens asked for."""

    def __init__(self, **people: str) -> None:
        self.people = people
        self.go = asyncio.Event()
        self.go.set()
        self.asked: list[str] = []

    async def admit(self, hello: frames.Hello) -> object:
        token = hello.token
        self.asked.append(token)
        await self.go.wait()
        if token not in self.people:
            raise Unauthorized("nobody has this token")
        return self.people[token]


async def test_who_dials_is_looked_up() -> None:
    register = Register(a="anna", b="ben")
    joined: asyncio.Queue[Connection] = asyncio.Queue()
    async with serve_engines(
        {"null": NullEngine()}, "0.0.0.0:0", auth=register.admit, on_connect=joined.put_nowait
    ) as endpoint:
        for token, name in register.people.items():
            connection = await connect(endpoint.address, token=token)
            assert (await joined.get()).peer == name
            await connection.engine("null").stats()
            await connection.close()
        for token in ("c", None):
            with pytest.raises(Unauthorized, match="nobody"):
                await connect(endpoint.address, token=token)
        assert register.asked == ["a", "b", "c", ""]
        assert joined.empty()


async def test_nothing_is_done_before() -> None:
    """Frames after hello wait too, and are then processed."""
    register, engine = Register(t="tom"), NullEngine()
    register.go.clear()
    async with (
        serve_engines({"null": engine}, auth=register.admit) as endpoint,
        raw(endpoint.address, None) as peer,
    ):
        opening = frames.Open(1, 1, "null", frames.pack_ids([20]), Sampling(), frames.pack_ids([]))
        peer.send(frames.Hello(0, 0, "", "t", {}), opening)
        await until(lambda: register.asked)
        async with raw(endpoint.address, None) as other:
            other.send(frames.GetStats(0, 1, "null"))
            assert await other.ended_with("protocol_error")
        assert (await engine.stats()).opened == 0
        assert not endpoint.connections
        register.go.set()
        assert isinstance(await peer.receive(), frames.Welcome)
        assert await peer.receive() == frames.Done(1, 1)


async def test_looking_up_has_a_limit() -> None:
    register = Register(t="tom")
    register.go.clear()
    impatient, before = WireSettings(hello_s=0.2), asyncio.all_tasks()
    async with serve_engines({}, auth=register.admit, settings=impatient) as endpoint:
        with pytest.raises(EngineStopped, match="authentication took longer than 0.2 s"):
            await connect(endpoint.address, token="t")
        assert register.asked == ["t"]
    assert asyncio.all_tasks() == before


async def test_an_endpoint_ends_while_somebody_is_looked_up() -> None:
    register, before = Register(t="tom"), asyncio.all_tasks()
    register.go.clear()
    async with serve_engines({}, auth=register.admit) as endpoint:
        connecting = asyncio.create_task(connect(endpoint.address, token="t"))
        await until(lambda: register.asked)
    with pytest.raises(EngineError, match="before hello"):
        await connecting
    assert asyncio.all_tasks() == before


async def test_a_bug_there_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    async def admit(hello: frames.Hello) -> object:
        raise ZeroDivisionError("secret details")

    async with serve_engines({}, auth=admit) as endpoint:
        with pytest.raises(EngineStopped, match="authentication failed unexpectedly"):
            await connect(endpoint.address, token="t")
    assert "secret details" in caplog.text


@pytest.mark.parametrize(
    ("now", "reason"),
    [({}, "nobody has this token"), ({"t": "eve"}, "somebody else's")],
    ids=["gone", "other"],
)
async def test_it_is_looked_up_again_at_each_return(now: dict[str, str], reason: str) -> None:
    register, engine = Register(t="tom"), NullEngine()
    async with (
        asyncio.timeout(20),
        serve_engines({"null": engine}, auth=register.admit, settings=PATIENT) as endpoint,
        proxy_to(endpoint.address) as proxy,
    ):
        connection = await connect(proxy.address, token="t", settings=PATIENT)
        remote = connection.engine("null")
        await remote.open([20], Sampling())
        proxy.cut("reset")
        assert (await remote.stats()).sessions == 1
        assert register.asked == ["t", "t"]
        register.people = now
        proxy.cut("reset")
        with pytest.raises(EngineStopped, match=reason):
            await remote.stats()
        await connection.finished
        (accepted,) = endpoint.connections
        assert accepted.away  # whoever has the token may yet come
        assert proxy.cuts == 2
    assert (await engine.stats()).cancelled == 1


async def test_a_return_waits_for_the_look_up() -> None:
    """One that takes too long is tried again."""
    register, settings = Register(t="tom"), replace(PATIENT, hello_s=0.3)
    async with (
        asyncio.timeout(20),
        serve_engines({"null": NullEngine()}, auth=register.admit, settings=settings) as endpoint,
        proxy_to(endpoint.address) as proxy,
    ):
        connection = await connect(proxy.address, token="t", settings=settings)
        register.go.clear()
        proxy.cut("reset")
        await until(lambda: len(register.asked) > 2)
        assert connection.away
        register.go.set()
        await connection.engine("null").stats()
        await connection.close()


async def test_the_shared_token_is_checked_at_each_return() -> None:
    async with (
        asyncio.timeout(20),
        serve_engines({"null": NullEngine()}, auth="t", settings=PATIENT) as endpoint,
        proxy_to(endpoint.address) as proxy,
    ):
        connection = await connect(proxy.address, token="t", settings=PATIENT)
        assert connection._dialler is not None
        connection._dialler._token = "stolen"
        proxy.cut("reset")
        with pytest.raises(EngineStopped, match="shared token"):
            await connection.engine("null").stats()
        await connection.finished
        assert proxy.cuts == 1


async def test_a_return_of_nobody_harms_nobody() -> None:
    """The connection stays alive over its own link after failed attempts to resume it."""
    async with asyncio.timeout(20), serve_engines({"null": NullEngine()}, settings=PATIENT) as endpoint:
        connection = await connect(endpoint.address, settings=PATIENT)
        (accepted,) = endpoint.connections
        assert connection._resume_buffer is not None
        name = connection._resume_buffer.name
        assert len(name) == 16
        for hello, code in (
            (frames.Hello(0, 0, "", "", {}, 60.0, bytes(16)), "unknown_connection"),
            (frames.Hello(0, 0, "", "", {}, 60.0, name[:-1]), "unknown_connection"),
            (frames.Hello(0, 0, "", "", {}, 60.0, name, 10**6), "protocol_error"),
        ):
            async with raw(endpoint.address, None) as peer:
                peer.send(hello)
                assert await peer.ended_with(code)
        await connection.engine("null").stats()
        assert not accepted.away
        assert endpoint.connections == {accepted}
        await connection.close()


def dialled(address: str, *sent: bytes) -> socket.socket:
    """A peer that sends so much and then waits."""
    host, port = address.split(":")
    peer = socket.create_connection((host, int(port)))
    for data in sent:
        peer.sendall(data)
    peer.setblocking(False)
    return peer


def shut(peer: socket.socket) -> bool:
    """Whether the other side has closed the connection."""
    try:
        while peer.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


MORE = 80


@pytest.mark.parametrize("announced", [1024 * 1024, HELLO_BYTES], ids=["too-much", "much"])
async def test_what_is_announced_before_hello_costs_no_memory(announced: int) -> None:
    """And of many silent peers the oldest make room."""
    header, part = HEADER.pack(announced, VERSION), bytes(100)
    patient = WireSettings(hello_s=60.0)
    async with asyncio.timeout(60), serve_engines({}, auth="t", settings=patient) as endpoint:
        with ExitStack() as stack:
            tracemalloc.start()
            stack.callback(tracemalloc.stop)
            peers = [
                stack.enter_context(dialled(endpoint.address, header, part)) for _ in range(UNPROVEN + MORE)
            ]
            turned_away = len(peers) if announced > HELLO_BYTES else MORE
            await until(lambda: sum(map(shut, peers)) >= turned_away)
            assert tracemalloc.get_traced_memory()[1] < 4096 * len(peers) + 1024 * 1024
            connection = await connect(endpoint.address, token="t", settings=patient)
            assert await connection.answers(60.0)
            if announced <= HELLO_BYTES:
                closed = [shut(peer) for peer in peers]
                assert closed == [True] * (MORE + 1) + [False] * (UNPROVEN - 1)
            await connection.close()


async def test_handshakes_that_never_end_make_room_too(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    here, there = contexts(certificate, key, certificate)
    patient = WireSettings(hello_s=60.0)
    async with asyncio.timeout(60), serve_engines({}, auth="t", tls=here, settings=patient) as endpoint:
        with ExitStack() as stack:
            peers = [stack.enter_context(dialled(endpoint.address)) for _ in range(UNPROVEN + MORE)]
            await until(lambda: sum(map(shut, peers)) >= MORE)
            connection = await connect(endpoint.address, token="t", tls=there, settings=patient)
            assert [shut(peer) for peer in peers] == [True] * (MORE + 1) + [False] * (UNPROVEN - 1)
            await connection.close()


async def test_those_that_are_looked_up_do_not_make_room() -> None:
    """The newcomer is refused instead."""
    register = Register(t="tom")
    register.go.clear()
    patient = WireSettings(hello_s=60.0)
    hello = bytes(frames.encode(frames.Hello(0, 0, "", "t", {})))
    async with asyncio.timeout(60), serve_engines({}, auth=register.admit, settings=patient) as endpoint:
        with ExitStack() as stack:
            peers = [stack.enter_context(dialled(endpoint.address, hello)) for _ in range(UNPROVEN)]
            await until(lambda: len(register.asked) == UNPROVEN)
            with pytest.raises(EngineError, match="closed the connection"):
                await connect(endpoint.address, token="t", settings=patient)
            register.go.set()
            await until(lambda: len(endpoint.connections) == UNPROVEN)
            connection = await connect(endpoint.address, token="t", settings=patient)
            assert not any(map(shut, peers))
            await connection.close()


@pytest.mark.virtual_time
async def test_after_an_error_it_accepts_again_a_second_later(caplog: pytest.LogCaptureFixture) -> None:
    """One that recurs, such as that no file descriptor is left, is not tried without pause."""
    loop = asyncio.get_running_loop()
    at_s: list[float] = []

    async def refuse(_: socket.socket) -> None:
        at_s.append(loop.time())
        if len(at_s) == 3:
            raise asyncio.CancelledError
        raise OSError("too many open files")

    acceptor = Acceptor({}, "", WireSettings(), Mock(), None)
    with patch.object(loop, "sock_accept", refuse, create=True), pytest.raises(asyncio.CancelledError):
        await acceptor.accept(Mock(socket.socket), None)
    assert at_s == [0.0, 1.0, 2.0]
    assert [record.getMessage() for record in caplog.records] == [
        "no connection can be accepted: too many open files"
    ] * 2
