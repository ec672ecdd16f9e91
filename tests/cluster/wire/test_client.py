"""Driving engines of another process: what is stopped is stopped, what is lost fails at once."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest

from tandem.cluster.link.link import Link, LinkProfile
from tandem.cluster.wire.client import Connection, RemoteEngine, connect
from tandem.cluster.wire.frames import UnknownEngine
from tandem.cluster.wire.listener import Endpoint, dial_in, serve_engines
from tandem.cluster.wire.peers import Peers
from tandem.cluster.wire.wire import WireSettings
from tandem.engine.base import (
    EngineError,
    EngineStopped,
    Forward,
    Forwarded,
    Sampling,
    SessionCancelled,
    Tensor,
    Tokens,
    Verdict,
    Verify,
)
from tandem.engine.null.engine import NullEngine, NullSession

LONG = Sampling(max_tokens=10**6)


class HeldSession(NullSession):
    """Verifications wait until they are let go."""

    async def _verify(self, operation: Verify) -> Verdict:
        held = self._engine
        assert isinstance(held, Held)
        held.entered.set()
        try:
            await held.go.wait()
        finally:
            held.left += 1
        return await super()._verify(operation)


class Held(NullEngine):
    session_class = HeldSession

    def __init__(self) -> None:
        super().__init__(context=2**40)
        self.entered, self.go = asyncio.Event(), asyncio.Event()
        self.left = 0


@asynccontextmanager
async def served(
    engine: NullEngine, settings: WireSettings | None = None, link: Link | None = None
) -> AsyncIterator[tuple[RemoteEngine, Connection, Endpoint]]:
    async with serve_engines({"engine": engine}) as endpoint:
        connection = await connect(endpoint.address, settings=settings or WireSettings())
        try:
            yield connection.engine("engine", link), connection, endpoint
        finally:
            await connection.close()


async def test_cancel_stops_the_work_there() -> None:
    engine = NullEngine(context=2**40)
    async with served(engine) as (remote, _, _):
        s = await remote.open([20], LONG)
        stream = s.generate()
        await anext(stream)
        await s.cancel()
        stopped = await engine.stats()
        assert (stopped.sessions, stopped.cancelled) == (0, 1)
        with pytest.raises(SessionCancelled):
            await anext(stream_to_its_end(stream))
        for _ in range(20):
            await remote.stats()  # time passes for the engine
        assert (await engine.stats()).tokens_generated == stopped.tokens_generated


async def stream_to_its_end(stream: AsyncIterator[Tokens]) -> AsyncIterator[None]:
    async for _ in stream:
        pass
    yield


@pytest.mark.parametrize("link", [None, Link(LinkProfile(rtt_s=0.002))])
async def test_leaving_generate_stops_the_work_there(link: Link | None) -> None:
    engine = NullEngine(context=2**40)
    async with served(engine, link=link) as (remote, _, _):
        s = await remote.open([20], LONG)
        async with aclosing(s.generate()) as stream:
            await anext(stream)
        await s.extend(0, [])  # comes after the generation has ended
        stopped = (await engine.stats()).tokens_generated
        for _ in range(20):
            await remote.stats()
        assert (await engine.stats()).tokens_generated == stopped < 10**6


async def test_giving_up_a_wait_stops_the_work_there() -> None:
    engine = Held()
    async with served(engine) as (remote, _, _):
        s = await remote.open([20], LONG)
        waiting = asyncio.create_task(s.verify([1]))
        await engine.entered.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await s.extend(0, [])
        assert engine.left == 1
        assert (await engine.stats()).tokens_verified == 0


async def test_an_operation_follows_the_one_that_was_given_up() -> None:
    """The abandoned operation may take a while to end; the next one waits for it instead of being refused."""

    class Slow(HeldSession):
        async def _verify(self, operation: Verify) -> Verdict:
            try:
                return await super()._verify(operation)
            except asyncio.CancelledError:
                await asyncio.sleep(0.01)
                raise

    engine = Held()
    engine.session_class = Slow  # type: ignore[misc]
    async with served(engine) as (remote, _, _):
        s = await remote.open([20], LONG)
        for _ in range(3):
            waiting = asyncio.create_task(s.verify([1]))
            await engine.entered.wait()
            waiting.cancel()
            await asyncio.wait((waiting,))
        await s.extend(0, [20])
        assert (await engine.stats()).tokens_verified == 0


async def test_a_cancelled_open_is_taken_back() -> None:
    """Whether the engine has not yet admitted the session, or its answer is still under way."""

    class Admitting(NullEngine):
        admits = asyncio.Event()

        async def open(self, *request: Any) -> NullSession:
            session = await super().open(*request)
            try:
                await self.admits.wait()
            except asyncio.CancelledError:
                await session.cancel()
                raise
            return session

    engine = Admitting(context=2**40)
    link = Link(
        LinkProfile(rtt_s=0.5)
    )  # longer than a busy machine looks away: the answer is still under way
    async with served(engine, link=link) as (remote, connection, _):
        near = connection.engine("engine")
        for admitted in (False, True):
            if admitted:
                engine.admits.set()
            opening = asyncio.create_task(remote.open([20], LONG))
            async with asyncio.timeout(5):
                while not (await near.stats()).sessions:
                    pass
                opening.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await opening
                while (await near.stats()).sessions:
                    pass
        assert (await engine.stats()).cancelled == 2


async def test_a_cancel_that_nobody_waits_for_is_carried_out() -> None:
    class Reluctant(NullSession):
        async def cancel(self) -> None:
            await asyncio.sleep(0.01)
            await super().cancel()

    engine = NullEngine(context=2**40)
    engine.session_class = Reluctant  # type: ignore[misc]
    async with served(engine) as (remote, _, _):
        s = await remote.open([20], LONG)
        cancelling = asyncio.create_task(s.cancel())
        await asyncio.sleep(0)
        cancelling.cancel()
        await asyncio.wait((cancelling,))
        async with asyncio.timeout(5):
            while (await remote.stats()).sessions:
                pass


@pytest.mark.parametrize("side", ["server", "client"])
async def test_a_lost_connection_fails_everything_at_once(side: str) -> None:
    engine = Held()
    async with served(engine) as (remote, connection, endpoint):
        s, t = await remote.open([20], LONG), await remote.open([20], LONG)
        waiting = asyncio.create_task(s.verify([]))
        await engine.entered.wait()
        stream = t.generate()
        await anext(stream)
        (accepted,) = endpoint.connections
        lost = accepted if side == "server" else connection
        assert lost._transport is not None
        lost._transport.abort()
        async with asyncio.timeout(5):
            with pytest.raises(EngineStopped):
                await waiting
            with pytest.raises(EngineStopped):
                await anext(stream_to_its_end(stream))
            with pytest.raises(EngineStopped):
                await s.verify([])
            await s.cancel()  # the other side did it by itself
            await accepted.finished
        stats = await engine.stats()
        assert (stats.sessions, stats.cancelled) == (0, 2)


async def test_no_answer_in_time() -> None:
    engine = Held()
    async with served(engine, WireSettings(timeout_s=0.1)) as (remote, _, _):
        s = await remote.open([20], LONG)
        with pytest.raises(EngineStopped, match="no answer"):
            await s.verify([])
        await s.extend(0, [])
        assert engine.left == 1  # and it was told to stop


async def test_a_bug_of_the_engine_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    class Buggy(NullSession):
        async def _verify(self, operation: Verify) -> Verdict:
            raise ZeroDivisionError("secret details")

    engine = NullEngine()
    engine.session_class = Buggy  # type: ignore[misc]
    async with served(engine) as (remote, _, _):
        s = await remote.open([20], Sampling())
        with pytest.raises(EngineError) as failed:
            await s.verify([])
        assert "secret" not in str(failed.value)
        assert "secret details" in caplog.text
        await s.extend(0, [])


async def test_hidden_states() -> None:
    class Doubling(NullSession):
        async def _forward(self, operation: Forward) -> Forwarded:
            rows = operation.hidden.numpy()[-operation.wanted :]
            return Forwarded(Tensor.of(rows * 2 + operation.position), 77, 0.5)

    class Middle(NullEngine):
        session_class = Doubling

        def __init__(self) -> None:
            super().__init__()
            self.info = msgspec.structs.replace(self.info, capabilities=("forward",))

    async with served(Middle()) as (remote, _, _):
        s = await remote.open([20], Sampling())
        for rows in (1, 3000):  # within the receive buffer, and beyond
            hidden = np.arange(rows * 64, dtype=np.float32).reshape(rows, 64)
            for wanted in (1, rows):
                forwarded = await s.forward(7, Tensor.of(hidden), wanted)
                assert (forwarded.hidden.numpy() == hidden[-wanted:] * 2 + 7).all()
                assert (forwarded.batch_tokens, forwarded.batch_s) == (77, 0.5)


async def test_sessions_belong_to_their_connection() -> None:
    """Their ids on the wire are the same, and do not meet."""
    engine = NullEngine()
    async with served(engine) as (mine, _, endpoint):
        connection = await connect(endpoint.address)
        theirs = connection.engine("engine")
        s, t = await mine.open([20], Sampling()), await theirs.open([21], Sampling())
        assert s._session == t._session
        assert (await s.verify([])).ids != (await t.verify([])).ids
        await t.cancel()
        await connection.close()
        assert (await s.verify([])).ids
        assert (await engine.stats()).cancelled == 1


async def test_engines_by_name() -> None:
    a, b = NullEngine(vocab_size=100), NullEngine(vocab_size=200)
    async with serve_engines({"a": a, "b": b}) as endpoint:
        connection = await connect(endpoint.address)
        remotes = {name: connection.engine(name) for name in "ab"}
        assert [remotes[name].info for name in "ab"] == [a.info, b.info]
        a_says, b_says = [
            (await (await remote.open([20], Sampling())).verify([])).ids for remote in remotes.values()
        ]
        assert a_says != b_says
        with pytest.raises(UnknownEngine, match="there are: a, b"):
            connection.engine("c")
        await connection.close()


async def test_a_device_behind_nat_dials_in() -> None:
    """Both sides drive each other's engines over the one connection."""
    cloud, phone = NullEngine(), NullEngine()
    joined = asyncio.get_running_loop().create_future()
    async with serve_engines({"cloud": cloud}, auth="t", on_connect=joined.set_result) as endpoint:
        outward = await dial_in(endpoint.address, {"phone": phone}, token="t")
        inward: Connection = await joined
        drafter, verifier = inward.engine("phone"), outward.engine("cloud")
        drafting = await drafter.open([20], Sampling())
        verifying = await verifier.open([20], Sampling())
        draft = await drafting.draft(0, [], 4)
        assert (await verifying.verify(draft.ids)).accepted == 4
        await outward.close()
        await inward.finished
    for engine in (cloud, phone):
        assert (await engine.stats()).cancelled == 1


async def test_peers_share_connections() -> None:
    peers = Peers()
    async with serve_engines({"a": NullEngine(), "b": NullEngine()}) as endpoint:
        engines = await asyncio.gather(*(peers.engine(endpoint.address, name) for name in "abab"))
        assert len(endpoint.connections) == 1
        await engines[0].open([20], Sampling())
        connection = await peers.connection(endpoint.address)
        await connection.close()
        assert (await (await peers.engine(endpoint.address, "a")).stats()).opened == 1  # dialled again
        await peers.close()
    with pytest.raises(EngineStopped):
        await peers.engine(endpoint.address, "a")


async def test_peers_forget_who_is_gone(unused_tcp_port: int) -> None:
    """A connection holds hundreds of kilobytes, and fleets change their addresses."""
    peers = Peers()
    gone = []
    for _ in range(20):
        async with serve_engines({"a": NullEngine()}) as endpoint:
            connection = await peers.connection(endpoint.address)
            gone.append(weakref.ref(connection))
            assert len(peers._dialling) == 1
        await connection.finished
        assert not peers._dialling
        with pytest.raises(EngineStopped):
            await peers.connection(f"127.0.0.1:{unused_tcp_port}")
        assert not peers._dialling
    del connection
    gc.collect()
    assert not any(connection() for connection in gone)
    await peers.close()


async def test_peers_close_while_one_of_them_is_dialled_in_vain(unused_tcp_port: int) -> None:
    peers = Peers()
    async with serve_engines({"a": NullEngine()}) as endpoint:
        there = await peers.connection(endpoint.address)
        dialling = asyncio.create_task(peers.connection(f"127.0.0.1:{unused_tcp_port}"))
        await asyncio.sleep(0)
        await peers.close()
        assert there.closed.done()
    with pytest.raises(EngineStopped):
        await dialling


async def test_a_connection_that_ends_late_does_not_undo_the_next_one() -> None:
    peers = Peers()
    async with serve_engines({"a": NullEngine()}) as endpoint:
        first = await peers.connection(endpoint.address)
        closing = asyncio.create_task(peers.close())
        await asyncio.sleep(0)
        second = await peers.connection(endpoint.address)
        await closing
        assert first.closed.done()
        assert second is not first
        assert await peers.connection(endpoint.address) is second
        await peers.close()


async def test_the_real_round_trip_is_known() -> None:
    async with served(NullEngine()) as (remote, connection, _):
        await remote.stats()
        assert 0 < connection.rtt_s < 1
