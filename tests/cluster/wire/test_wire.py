"""Frames that a connection refuses, without harm to other connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.wire import frames, server
from tandem.cluster.wire.client import Connection, connect
from tandem.cluster.wire.frames import HEADER, VERSION, Frame, Unauthorized, encode, pack_ids
from tandem.cluster.wire.listener import serve_engines
from tandem.cluster.wire.tls import contexts
from tandem.cluster.wire.wire import WireSettings
from tandem.engine.base import EngineError, EngineStopped, NoCapacity, Sampling, Tensor, UnknownSession
from tandem.engine.null.engine import NullEngine
from tests.cluster.certificate import make_certificate
from tests.cluster.raw import raw
from tests.cluster.wire.test_frames import ANY

LIMITS = WireSettings(max_frame=100_000)
OPEN = frames.Open(1, 1, "null", pack_ids([20, 21]), Sampling(max_tokens=400), pack_ids([]))


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with serve_engines({"null": NullEngine()}, settings=LIMITS) as endpoint:
        yield endpoint.address


@pytest.mark.parametrize(
    "data",
    [
        b"\x05\0\0\0" + bytes([VERSION]) + b"junk!",
        HEADER.pack(1, VERSION + 1) + b"\0",
        HEADER.pack(LIMITS.max_frame + 1, VERSION),
        HEADER.pack(0, VERSION),
        bytes(encode(OPEN)) + bytes(encode(OPEN)),  # a sequence number that is in use
    ],
    ids=["malformed", "unknown version", "too large", "empty", "repeated"],
)
async def test_closes_with_a_typed_error(address: str, data: bytes) -> None:
    async with raw(address) as bad, raw(address) as good:
        bad.send(data)
        assert await bad.ended_with("protocol_error")
        good.send(OPEN)
        assert await good.receive() == frames.Done(1, 1)


async def test_frames_of_any_size_and_split(address: str) -> None:
    prompt = [20 + i % 50 for i in range(400)]
    data = b"".join(
        encode(frames.Verify(1, seq, "null", pack_ids(range(size)))) for seq, size in ((2, 9), (3, 40_000))
    )
    async with raw(address) as peer:
        peer.send(frames.Open(1, 1, "null", pack_ids(prompt), Sampling(max_tokens=50), pack_ids([])))
        assert await peer.receive() == frames.Done(1, 1)
        for start in range(0, len(data), 7_001):
            peer.send(data[start : start + 7_001])
            await peer.writer.drain()
        assert [type(await peer.receive()) for _ in "ab"] == [frames.Verdict, frames.Verdict]


async def test_large_frames_have_their_own_memory() -> None:
    """Frames beyond the receive buffer, one after another and mixed with small ones."""
    async with serve_engines({"null": NullEngine()}) as endpoint, raw(endpoint.address) as peer:
        peer.send(OPEN)
        assert await peer.receive() == frames.Done(1, 1)
        for seq in range(2, 6):
            peer.send(frames.Verify(1, seq, "null", pack_ids(range(40_000 if seq % 2 else 400_000))))
        for seq in range(2, 6):
            reply = await peer.receive()
            assert reply is not None
            assert (type(reply), reply.seq) == (frames.Verdict, seq)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (frames.Verify(2, 2, "null", pack_ids([])), "unknown_session"),
        (frames.Verify(1, 2, "other", pack_ids([])), "unknown_engine"),
        (frames.Verify(1, 2, "null", b"\2odd"), "protocol_error"),
        (frames.Verify(1, 2, "null", pack_ids([1]), frames.DraftProbs(3, b"", b"")), "protocol_error"),
        (frames.Draft(1, 2, "null", 2**31 - 1, pack_ids([1]), 4), "invalid_request"),
        (frames.Forward(1, 2, "null", 0, Tensor((0,), "float32", memoryview(b"")), 0), "invalid_request"),
        (frames.GetStats(0, 2, "other"), "unknown_engine"),
    ],
)
async def test_an_error_is_the_sessions_own(address: str, frame: Frame, code: str) -> None:
    async with raw(address) as peer:
        other = frames.Open(7, 3, "null", pack_ids([20]), Sampling(), pack_ids([]))
        peer.send(OPEN, other, frame, frames.Verify(7, 4, "null", pack_ids([])))
        replies = {reply.seq: reply for reply in [await peer.receive() for _ in range(4)] if reply}
        error = replies[2]
        assert isinstance(error, frames.Error)
        assert (error.session, error.code) == (frame.session, code)
        assert isinstance(replies[4], frames.Verdict)  # the connection's other session lives


async def test_a_protocol_error_ends_its_session(address: str) -> None:
    async with raw(address) as peer:
        peer.send(OPEN, frames.Verify(1, 2, "null", b"\2odd"))
        assert await peer.receive() == frames.Done(1, 1)
        assert isinstance(await peer.receive(), frames.Error)
        peer.send(frames.Verify(1, 3, "null", pack_ids([])))
        error = await peer.receive()
        assert isinstance(error, frames.Error)
        assert error.code == "unknown_session"


async def test_operations_of_a_session_follow_each_other(address: str) -> None:
    """Also behind one that is refused, and one that was abandoned while it waited for its turn."""
    async with raw(address) as peer:
        peer.send(OPEN, *(frames.Verify(1, seq, "null", pack_ids([])) for seq in (2, 3)))
        peer.send(frames.Open(1, 4, "null", pack_ids([20]), Sampling(), pack_ids([])))
        peer.send(frames.Verify(1, 5, "null", pack_ids([])), frames.Abandon(1, 5, "null"))
        peer.send(frames.Verify(1, 6, "null", pack_ids([])))
        replies = {reply.seq: reply for reply in [await peer.receive() for _ in range(5)] if reply}
        engine = NullEngine()
        alone = await engine.open([20, 21], Sampling(max_tokens=400))
        for seq in (2, 3, 6):
            verdict = replies[seq]
            assert isinstance(verdict, frames.Verdict)
            assert verdict.ids == pack_ids((await alone.verify([])).ids)
        refused = replies[4]
        assert isinstance(refused, frames.Error)
        assert (refused.code, "already open" in refused.message) == ("invalid_request", True)


async def test_one_that_is_stopped_keeps_no_place_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that answers does, however full it is."""
    monkeypatch.setattr(server, "QUIET_S", 0.0)
    monkeypatch.setattr(server, "SIGN_S", 0.05)
    async with serve_engines({"null": NullEngine(capacity=1)}) as endpoint, raw(endpoint.address) as stopped:
        stopped.send(OPEN)
        assert await stopped.receive() == frames.Done(1, 1)
        async with (
            closing(await connect(endpoint.address)) as one,
            closing(await connect(endpoint.address)) as other,
        ):
            session = await one.engine("null").open([20, 21], Sampling())
            with pytest.raises(NoCapacity):
                await other.engine("null").open([20, 21], Sampling())
            await session.cancel()
        stopped.send(frames.Verify(1, 2, "null", pack_ids([])))
        reply = await stopped.receive()
        assert isinstance(reply, frames.Error)
        assert reply.code == UnknownSession.code


@asynccontextmanager
async def closing(connection: Connection) -> AsyncIterator[Connection]:
    try:
        yield connection
    finally:
        await connection.close()


async def test_cancelling_drops_what_queued(address: str) -> None:
    async with raw(address) as peer:
        peer.send(OPEN, frames.Generate(1, 2, "null"))
        peer.send(
            *(frames.Verify(1, seq, "null", pack_ids([])) for seq in (3, 4)), frames.Cancel(1, 5, "null")
        )
        codes = {}
        while len(codes) < 3:
            reply = await peer.receive()
            if isinstance(reply, frames.Error):
                codes[reply.seq] = reply.code
        assert codes == dict.fromkeys((2, 3, 4), "cancelled")


async def test_what_is_abandoned_before_it_begins_is_forgotten(address: str) -> None:
    """The sequence number is free again, and an id whose Open never began can be cancelled and used."""
    async with raw(address) as peer:
        peer.send(OPEN, frames.Abandon(1, 1, "null"))
        peer.send(frames.GetStats(0, 2, "null"))
        assert isinstance(await peer.receive(), frames.StatsReply)
        peer.send(frames.Cancel(1, 1, "null"))
        assert await peer.receive() == frames.Done(1, 1)
        peer.send(OPEN)
        assert await peer.receive() == frames.Done(1, 1)


noise = st.one_of(
    st.binary(min_size=1, max_size=60),
    ANY.map(lambda frame: bytes(encode(frame))),
    st.tuples(ANY, st.integers(0, 40), st.integers(0, 255)).map(
        lambda t: (lambda d: bytes([*d[: t[1] % len(d)], t[2], *d[t[1] % len(d) + 1 :]]))(encode(t[0]))
    ),
)


who = {"session": st.integers(4, 7), "seq": st.just(0), "engine": st.just("null")}
some_ids = st.integers(0, 15).flatmap(
    lambda n: st.lists(st.integers(0, 2047 + n), max_size=5).map(pack_ids) if n else st.just(b"\2odd")
)
sampling = st.builds(Sampling, max_tokens=st.integers(-1, 600), temperature=st.sampled_from([0.0, 0.0, 1.0]))
requests = st.lists(
    st.one_of(
        st.builds(frames.Open, **who, prompt=some_ids, sampling=sampling, log=some_ids),
        st.builds(frames.Generate, **who),
        st.builds(frames.Verify, **who, ids=some_ids),
        st.builds(frames.Draft, **who, position=st.integers(0, 6), ids=some_ids, window=st.integers(0, 99)),
        st.builds(frames.Extend, **who, position=st.integers(0, 6), ids=some_ids),
        st.builds(frames.Cancel, **who),
        st.builds(frames.GetStats, **who),
        st.integers(1, 12).map(lambda seq: frames.Abandon(5, seq, "null")),
    ),
    min_size=4,
    max_size=24,
)


def numbered(said: list[frames.RequestFrame]) -> bytes:
    for seq, request in enumerate(said, 1):
        if not isinstance(request, frames.Abandon):
            request.seq = seq
    return b"".join(map(encode, said))


@given(st.lists(noise, min_size=1, max_size=6), st.booleans())
def test_noise_harms_nobody(said: list[bytes], hello: bool) -> None:
    check_that_others_are_unharmed(b"", said, hello)


@given(requests.map(numbered), st.lists(noise, max_size=1))
def test_wild_requests_harm_nobody(asked: bytes, noise: list[bytes]) -> None:
    check_that_others_are_unharmed(asked, noise, hello=True)


@given(requests.map(numbered), st.lists(noise, max_size=4))
def test_noise_on_a_connection_that_may_be_resumed(asked: bytes, noise: list[bytes]) -> None:
    check_that_others_are_unharmed(asked, noise, hello=True, resume_s=60.0)


def check_that_others_are_unharmed(
    asked: bytes, noise: list[bytes], hello: bool, resume_s: float = 0.0
) -> None:
    """A well-behaved session, of an id that the wild peer uses too, gets what it would get alone.

    asked: requests, whose work is under way before the noise begins.
    """

    async def run() -> None:
        engine = NullEngine()
        async with (
            asyncio.timeout(10),
            serve_engines({"null": engine}, settings=replace(LIMITS, resume_s=resume_s)) as endpoint,
            raw(endpoint.address, "" if hello else None, resume_s) as bad,
        ):
            connection = await connect(endpoint.address)
            good = connection.engine("null")
            session = await good.open([20], Sampling())
            if asked:
                bad.send(asked, frames.GetStats(0, 99, "null"))
                while (reply := await bad.receive()) is not None and reply.seq != 99:
                    pass
            bad.send(*noise)
            bad.writer.write_eof()
            while await bad.receive() is not None:
                pass
            expected = NullEngine()
            alone = await expected.open([20], Sampling())
            for drafts in ([], [1, 2], []):
                assert await session.verify(drafts) == await alone.verify(drafts)
            await connection.close()
        assert (await engine.stats()).sessions == 0

    asyncio.run(run())


async def test_the_token_is_asked_for() -> None:
    async with serve_engines({"null": NullEngine()}, auth="s3cret") as endpoint:
        connection = await connect(endpoint.address, token="s3cret")
        await connection.engine("null").stats()
        await connection.close()
        for wrong in ("s3cre", None, "ünicode"):
            with pytest.raises(Unauthorized) as refused:
                await connect(endpoint.address, token=wrong)
            assert "s3cret" not in str(refused.value)
        async with raw(endpoint.address, None) as peer:  # nothing works before hello
            peer.send(frames.GetStats(0, 1, "null"))
            assert await peer.ended_with("protocol_error")


async def test_the_token_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with serve_engines({"null": NullEngine()}, auth="s3cret") as endpoint:
        with pytest.raises(Unauthorized):
            await connect(endpoint.address, token="0ther")
    assert "s3cret" not in caplog.text
    assert "0ther" not in caplog.text


async def test_beyond_this_machine_a_token_is_needed() -> None:
    with pytest.raises(ValueError, match="token"):
        async with serve_engines({}, "0.0.0.0:0"):
            pass
    async with serve_engines({}, "0.0.0.0:0", auth="t") as endpoint:
        assert endpoint.address.startswith("0.0.0.0:")


async def test_who_says_nothing_is_shown_out() -> None:
    impatient = WireSettings(hello_s=0.1)
    async with serve_engines({}, settings=impatient) as endpoint, raw(endpoint.address, None) as peer:
        assert await peer.ended_with("protocol_error")


async def test_who_falls_silent_is_lost() -> None:
    """The peer stays connected but no longer answers pings."""
    impatient = WireSettings(silence_s=0.2)
    async with serve_engines({}, settings=impatient) as endpoint, raw(endpoint.address) as peer:
        assert await peer.ended_with("protocol_error")


async def test_who_does_not_read_is_lost() -> None:
    engine = NullEngine(context=2**40)
    impatient = WireSettings(timeout_s=0.3, hello_s=0.3)
    async with serve_engines({"null": engine}, settings=impatient) as endpoint, raw(endpoint.address) as peer:
        sampling = Sampling(max_tokens=2**31)
        peer.send(frames.Open(1, 1, "null", pack_ids([20]), sampling, pack_ids([])))
        peer.send(frames.Generate(1, 2, "null"))
        (connection,) = endpoint.connections
        await connection.finished
        assert (await engine.stats()).cancelled == 1


async def test_a_successor_listens_before_its_predecessor_ends(unused_tcp_port: int) -> None:
    address = f"127.0.0.1:{unused_tcp_port}"
    async with serve_engines({"null": NullEngine()}, address) as successor:
        async with serve_engines({"null": NullEngine()}, address) as predecessor:
            assert successor.address == predecessor.address == address
        for _ in range(8):  # none goes to the one that has ended
            async with raw(address):
                pass
        with pytest.raises(OSError, match="in use"), socket.create_server(("127.0.0.1", unused_tcp_port)):
            pass


async def test_a_free_port_is_shared_with_nobody() -> None:
    async with serve_engines({"null": NullEngine()}, "127.0.0.1:0") as endpoint:
        port = int(endpoint.address.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port), reuse_port=True)


async def test_nobody_there(unused_tcp_port: int) -> None:
    with pytest.raises(EngineStopped, match="no connection"):
        await connect(f"127.0.0.1:{unused_tcp_port}")
    with pytest.raises(EngineStopped, match="no connection"):
        await connect("nonsense")


async def test_a_server_that_says_no_hello() -> None:
    gone = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        gone.set()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    with pytest.raises(frames.ProtocolError, match="hello"):
        await connect(f"{host}:{port}", settings=WireSettings(hello_s=0.1))
    await gone.wait()
    server.close()
    await server.wait_closed()


async def test_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    server_tls, client_tls = contexts(certificate, key, certificate)
    async with serve_engines({"null": NullEngine()}, auth="t", tls=server_tls) as endpoint:
        connection = await connect(endpoint.address, token="t", tls=client_tls)
        engine = connection.engine("null")
        session = await engine.open([20], Sampling(max_tokens=100))
        ids = [i async for tokens in session.generate() for i in tokens.ids]
        assert len(ids) == 100
        large = await session.verify(range(400_000))  # larger than the receive buffer
        assert large.finish == "length"
        await connection.close()
        with pytest.raises(EngineStopped, match="certificate"):
            await connect(endpoint.address, token="t", tls=ssl.create_default_context())
        nobody = ssl.create_default_context(cafile=str(certificate))  # has none to show
        with pytest.raises(EngineError):
            await connect(endpoint.address, token="t", tls=nobody)
        with pytest.raises(EngineError):
            await connect(endpoint.address, token="t", settings=WireSettings(hello_s=1.0))  # in clear


def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    certificate, _ = make_certificate(tmp_path)
    _, key = make_certificate(tmp_path / "other")
    with pytest.raises(ValueError, match="no certificate and its key"):
        contexts(certificate, key, certificate)
