"""Driving engines of another process: what is stopped is stopped, what is lost fails at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import numpy as np
import pytest

from cluster.endpoint import Endpoint, dial_in, serve_engines
from cluster.frames import Tensor, UnknownEngine
from cluster.link import Link, LinkProfile
from cluster.peers import Peers
from cluster.remote import Connection, RemoteEngine, connect
from cluster.wire import WireSettings
from engine.base import (
    DraftProbs,
    EngineError,
    EngineStopped,
    InvalidRequest,
    Sampling,
    SessionCancelled,
    Tokens,
    Verdict,
)
from engine.null_engine import NullEngine

LONG = Sampling(max_tokens=10**6)


class Held(NullEngine):
    """Verifications wait until they are let go."""

    def __init__(self) -> None:
        super().__init__(context=2**40)
        self.entered, self.go = asyncio.Event(), asyncio.Event()
        self.left = 0

    async def verify(self, session: int, drafts: Sequence[int], probs: DraftProbs | None = None) -> Verdict:
        self.entered.set()
        try:
            await self.go.wait()
        finally:
            self.left += 1
        return await super().verify(session, drafts, probs)


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
        await remote.open(1, [20], LONG)
        stream = remote.generate(1)
        await anext(stream)
        await remote.cancel(1)
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
        await remote.open(1, [20], LONG)
        async with aclosing(remote.generate(1)) as stream:  # type: ignore[type-var]
            await anext(stream)
        await remote.extend(1, 0, [])  # comes after the generation has ended
        stopped = (await engine.stats()).tokens_generated
        for _ in range(20):
            await remote.stats()
        assert (await engine.stats()).tokens_generated == stopped < 10**6


async def test_giving_up_a_wait_stops_the_work_there() -> None:
    engine = Held()
    async with served(engine) as (remote, _, _):
        await remote.open(1, [20], LONG)
        waiting = asyncio.create_task(remote.verify(1, [1]))
        await engine.entered.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await remote.extend(1, 0, [])
        assert engine.left == 1
        assert (await engine.stats()).tokens_verified == 0


async def test_operations_of_a_session_follow_each_other() -> None:
    engine = Held()
    async with served(engine) as (remote, _, _):
        await remote.open(1, [20], LONG)
        first, second = (asyncio.create_task(remote.verify(1, [])) for _ in "ab")
        await engine.entered.wait()
        await remote.stats()
        assert not first.done()
        engine.go.set()
        assert (await first).ids != (await second).ids
        assert (await engine.stats()).tokens_generated == 2


async def test_cancelling_drops_what_queued() -> None:
    engine = Held()
    async with served(engine) as (remote, _, _):
        await remote.open(1, [20], LONG)
        running = [asyncio.create_task(remote.verify(1, [])) for _ in range(3)]
        await engine.entered.wait()
        await remote.cancel(1)
        engine.go.set()
        results = await asyncio.gather(*running, return_exceptions=True)
        assert all(isinstance(r, EngineError) for r in results)
        assert engine.left == 1


@pytest.mark.parametrize("side", ["server", "client"])
async def test_a_lost_connection_fails_everything_at_once(side: str) -> None:
    engine = Held()
    async with served(engine) as (remote, connection, endpoint):
        await remote.open(1, [20], LONG)
        await remote.open(2, [20], LONG)
        waiting = asyncio.create_task(remote.verify(1, []))
        await engine.entered.wait()
        stream = remote.generate(2)
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
                await remote.verify(1, [])
            await remote.cancel(1)  # the other side did it by itself
            await accepted.finished
        stats = await engine.stats()
        assert (stats.sessions, stats.cancelled) == (0, 2)


async def test_no_answer_in_time() -> None:
    engine = Held()
    async with served(engine, WireSettings(timeout_s=0.1)) as (remote, _, _):
        await remote.open(1, [20], LONG)
        with pytest.raises(EngineStopped, match="no answer"):
            await remote.verify(1, [])
        await remote.extend(1, 0, [])
        assert engine.left == 1  # and it was told to stop


async def test_a_bug_of_the_engine_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    class Buggy(NullEngine):
        async def verify(self, *args: object) -> Verdict:
            raise ZeroDivisionError("secret details")

    async with served(Buggy()) as (remote, _, _):
        await remote.open(1, [20], Sampling())
        with pytest.raises(EngineError) as failed:
            await remote.verify(1, [])
        assert "secret" not in str(failed.value)
        assert "secret details" in caplog.text
        await remote.extend(1, 0, [])


async def test_hidden_states() -> None:
    class Middle(NullEngine):
        async def forward(self, session: int, position: int, hidden: Tensor) -> Tensor:
            return Tensor.of(hidden.numpy() * 2 + position)

    async with served(Middle()) as (remote, _, _):
        await remote.open(1, [20], Sampling())
        for rows in (1, 3000):  # within the receive buffer, and beyond
            hidden = np.arange(rows * 64, dtype=np.float32).reshape(rows, 64)
            result = (await remote.forward(1, 7, Tensor.of(hidden))).numpy()
            assert (result == hidden * 2 + 7).all()
    async with served(NullEngine()) as (remote, _, _):
        await remote.open(1, [20], Sampling())
        with pytest.raises(InvalidRequest, match="hidden"):
            await remote.forward(1, 0, Tensor.of(hidden))


async def test_sessions_belong_to_their_connection() -> None:
    engine = NullEngine()
    async with served(engine) as (mine, _, endpoint):
        connection = await connect(endpoint.address)
        theirs = connection.engine("engine")
        await mine.open(1, [20], Sampling())
        with pytest.raises(InvalidRequest, match="already open"):
            await theirs.open(1, [20], Sampling())
        await theirs.cancel(1)
        await connection.close()
        assert (await mine.verify(1, [])).ids
        assert (await engine.stats()).cancelled == 0


async def test_engines_by_name() -> None:
    a, b = NullEngine(vocab_size=100), NullEngine(vocab_size=200)
    async with serve_engines({"a": a, "b": b}) as endpoint:
        connection = await connect(endpoint.address)
        remotes = {name: connection.engine(name) for name in "ab"}
        assert [remotes[name].info for name in "ab"] == [a.info, b.info]
        for remote in remotes.values():
            await remote.open(1, [20], Sampling())  # the same session, at both
        assert (await remotes["a"].verify(1, [])).ids != (await remotes["b"].verify(1, [])).ids
        with pytest.raises(UnknownEngine, match="there are: a, b"):
            connection.engine("c")
        await connection.close()


async def test_a_device_behind_nat_dials_in() -> None:
    """Both sides drive each other's engines over the one connection."""
    cloud, phone = NullEngine(), NullEngine()
    joined = asyncio.get_running_loop().create_future()
    async with serve_engines({"cloud": cloud}, token="t", on_connect=joined.set_result) as endpoint:
        outward = await dial_in(endpoint.address, {"phone": phone}, token="t")
        inward: Connection = await joined
        drafter, verifier = inward.engine("phone"), outward.engine("cloud")
        await drafter.open(1, [20], Sampling())
        await verifier.open(1, [20], Sampling())
        draft = await drafter.draft(1, 0, [], 4)
        assert (await verifier.verify(1, draft.ids)).accepted == 4
        await outward.close()
        await inward.finished
    for engine in (cloud, phone):
        assert (await engine.stats()).cancelled == 1


async def test_peers_share_connections() -> None:
    peers = Peers()
    async with serve_engines({"a": NullEngine(), "b": NullEngine()}) as endpoint:
        engines = await asyncio.gather(*(peers.engine(endpoint.address, name) for name in "abab"))
        assert len(endpoint.connections) == 1
        await engines[0].open(1, [20], Sampling())
        connection = await peers.connection(endpoint.address)
        await connection.close()
        assert (await (await peers.engine(endpoint.address, "a")).stats()).opened == 1  # dialled again
        await peers.close()
    with pytest.raises(EngineStopped):
        await peers.engine(endpoint.address, "a")


async def test_the_real_round_trip_is_known() -> None:
    async with served(NullEngine()) as (remote, connection, _):
        await remote.stats()
        assert 0 < connection.rtt_s < 1
