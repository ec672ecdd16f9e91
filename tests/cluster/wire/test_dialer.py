"""Connections whose link comes and goes: nothing is lost, nothing comes twice, and every wait has an end."""

from __future__ import annotations

import asyncio
import gc
import random
import ssl
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
import uvloop

from tandem.cluster.link.link import Link, LinkProfile
from tandem.cluster.wire import frames
from tandem.cluster.wire.client import Connection, RemoteEngine, connect
from tandem.cluster.wire.dialer import Dialler
from tandem.cluster.wire.listener import dial_in, serve_engines
from tandem.cluster.wire.resume_buffer import ACK_BYTES, ResumeBuffer
from tandem.cluster.wire.tls import contexts
from tandem.cluster.wire.wire import WireSettings
from tandem.engine.base import EngineStopped, Forward, Forwarded, InvalidRequest, Sampling, Tensor
from tandem.engine.null.engine import NullEngine, NullSession
from tests.cluster.certificate import make_certificate
from tests.cluster.proxy import Cut, Proxy, proxy_to
from tests.cluster.wire.test_client import Held

PATIENT = WireSettings(resume_s=60.0)
ALERT = replace(PATIENT, silence_s=0.4, hello_s=1.0)
LONG = Sampling(max_tokens=2**31)
TOKENS = 4000


class Doubled(NullSession):
    async def _forward(self, operation: Forward) -> Forwarded:
        return Forwarded(Tensor.of(operation.hidden.numpy() * 2 + operation.position))


class Middle(NullEngine):
    session_class = Doubled

    def __init__(self) -> None:
        super().__init__(context=2**40)
        self.info = msgspec.structs.replace(self.info, capabilities=(*self.info.capabilities, "forward"))


def plan(seed: int, cuts: int, most_bytes: int, *hows: str) -> list[Cut]:
    rng = random.Random(seed)
    return [Cut(rng.randint(1, most_bytes), rng.choice(hows)) for _ in range(cuts)]


@asynccontextmanager
async def linked(
    engine: NullEngine,
    cuts: Iterable[Cut] = (),
    settings: WireSettings = PATIENT,
    there: WireSettings | None = None,
    tls: tuple[ssl.SSLContext | None, ssl.SSLContext | None] = (None, None),
) -> AsyncIterator[tuple[RemoteEngine, Connection, Connection, Proxy]]:
    """An engine behind a link: it, the connection here, the one there, and the link.

    The first connection's bytes until hello is over are not counted: the first hello is nobody's to repeat.
    """
    async with (
        asyncio.timeout(60),
        serve_engines({"engine": engine}, settings=there or settings, tls=tls[0]) as endpoint,
        proxy_to(endpoint.address, [Cut(2**60), *cuts]) as proxy,
    ):
        connection = await connect(proxy.address, settings=settings, tls=tls[1])
        (accepted,) = endpoint.connections
        yield connection.engine("engine"), connection, accepted, proxy
        await connection.close()
        await accepted.finished


async def until(condition: Callable[[], object], within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - of more than events can tell
            await asyncio.sleep(0.001)


async def alone(prompt: list[int], tokens: int) -> list[int]:
    """Return an engine's tokens without a wire."""
    session = await NullEngine(context=2**40).open(prompt, Sampling(max_tokens=tokens))
    return [i async for part in session.generate() for i in part.ids]


async def stream_through_cuts(
    cuts: list[Cut], tls: tuple[ssl.SSLContext | None, ssl.SSLContext | None] = (None, None)
) -> None:
    async with linked(NullEngine(context=2**40), cuts, ALERT, tls=tls) as (engine, here, there, proxy):
        went: list[str] = []
        here.on_away.append(lambda: went.append("away"))
        here.on_return.append(lambda: went.append("back"))
        proxy.cut("reset")
        session = await engine.open([20], Sampling(max_tokens=TOKENS))
        ids = [i async for part in session.generate() for i in part.ids]
        assert ids == await alone([20], TOKENS)
        assert proxy.cuts >= 20
        await until(lambda: not here.away)
        await asyncio.sleep(0)
        assert went == ["away", "back"] * (len(went) // 2)
        assert len(went) > 20  # some cuts hit a hello, and are no break of their own
        assert not there.closed.done()


@pytest.mark.parametrize("how", ["end", "reset"])
async def test_a_stream_survives_cuts(how: str) -> None:
    await stream_through_cuts(plan(1, 30, 4000, how))


async def test_a_stream_survives_silence() -> None:
    """Among other cuts: nobody says that the link is gone."""
    cuts = plan(2, 30, 4000, "end", "reset")
    cuts[3::10] = [Cut(cut.after_bytes, "silent") for cut in cuts[3::10]]
    await stream_through_cuts(cuts)


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    certificate, key = make_certificate(tmp_path)
    return contexts(certificate, key, certificate)


TLS_CUTS = [Cut(cut.after_bytes + 4000, cut.how) for cut in plan(3, 24, 7000, "end", "reset")]


async def test_a_stream_survives_cuts_of_tls(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    await stream_through_cuts(TLS_CUTS, tls)


def test_on_another_event_loop(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(stream_through_cuts(plan(4, 30, 4000, "end", "reset", "reset")))
        runner.run(stream_through_cuts(TLS_CUTS, tls))


async def test_large_frames_survive_cuts() -> None:
    """While they are written here, and while they are received."""
    cuts = [Cut(after) for after in (300_000, 700_000, 1_000_100, 1_100_000, 1_700_000, 2_200_000)]
    async with linked(Middle(), cuts) as (engine, _, _, proxy):
        session = await engine.open([20], LONG)
        proxy.cut("reset")
        for position in range(6):
            hidden = np.arange(250_000, dtype=np.float32).reshape(-1, 1000)
            forwarded = await session.forward(position, Tensor.of(hidden), 250)
            assert (forwarded.hidden.numpy() == hidden * 2 + position).all()
        assert proxy.cuts == 7


async def test_calls_in_both_directions_survive_cuts() -> None:
    """A device that dialled in is driven by the other side, and drives it too."""
    cloud, phone = NullEngine(context=2**40), NullEngine(context=2**40)
    joined: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
    async with (
        asyncio.timeout(60),
        serve_engines({"cloud": cloud}, auth="t", settings=ALERT, on_connect=joined.set_result) as endpoint,
        proxy_to(endpoint.address, [Cut(2**60), *plan(5, 40, 3000, "end", "reset")]) as proxy,
    ):
        outward = await dial_in(proxy.address, {"phone": phone}, token="t", settings=ALERT)
        inward = await joined
        proxy.cut("reset")

        async def rounds(engine: RemoteEngine, prompt: list[int]) -> None:
            session = await engine.open(prompt, LONG)
            expected = await NullEngine(context=2**40).open(prompt, LONG)
            for _ in range(600):
                assert await session.verify([1, 2]) == await expected.verify([1, 2])
            await session.cancel()

        async def stream(engine: RemoteEngine, prompt: list[int]) -> None:
            session = await engine.open(prompt, Sampling(max_tokens=1000))
            ids = [i async for part in session.generate() for i in part.ids]
            assert ids == await alone(prompt, 1000)

        drafter, verifier = inward.engine("phone"), outward.engine("cloud")
        await asyncio.gather(
            rounds(drafter, [20]), rounds(verifier, [21]), stream(drafter, [22]), stream(verifier, [23])
        )
        assert proxy.cuts >= 20
        assert endpoint.connections == {inward}
        await outward.close()
        await inward.finished
    for engine in (cloud, phone):
        stats = await engine.stats()
        assert (stats.opened, stats.sessions) == (2, 0)


async def test_calls_behind_an_emulated_link_survive() -> None:
    async with linked(NullEngine(), plan(6, 10, 600, "reset")) as (_, here, _, proxy):
        proxy.cut("reset")
        engine = here.engine("engine", Link(LinkProfile(rtt_s=0.002)))
        session = await engine.open([20], Sampling(max_tokens=100))
        ids = [i async for part in session.generate() for i in part.ids]
        assert ids == await alone([20], 100)
        assert proxy.cuts > 1


async def test_what_is_said_while_away_is_heard_on_return() -> None:
    engine = NullEngine()
    async with linked(engine) as (remote, here, there, proxy):
        proxy.refusing = True
        proxy.cut("reset")
        await until(lambda: here.away and there.away)
        opening = asyncio.create_task(remote.open([20], Sampling()))
        await until(lambda: proxy.dials > 3)  # it goes on trying
        assert not opening.done()
        assert not here.closed.done()
        proxy.refusing = False
        session = await opening
        assert not here.away
        assert not there.away
        await session.cancel()
        assert (await engine.stats()).cancelled == 1


async def test_a_call_has_its_own_deadline_while_away() -> None:
    settings = replace(PATIENT, timeout_s=0.2)
    async with linked(NullEngine(), settings=settings, there=PATIENT) as (remote, here, _, proxy):
        proxy.refusing = True
        proxy.cut("reset")
        await until(lambda: here.away)
        with pytest.raises(EngineStopped, match="no answer"):
            await remote.stats()
        assert here.away
        proxy.refusing = False
        await until(lambda: not here.away)


async def test_nobody_waits_for_longer_than_both_want() -> None:
    """All waiting calls fail on both sides, and no task is left."""
    engine, before = Held(), asyncio.all_tasks()
    shorter = replace(PATIENT, resume_s=0.3)
    for here_s, there_s in ((PATIENT, shorter), (shorter, PATIENT)):
        async with linked(engine, settings=here_s, there=there_s) as (remote, here, there, proxy):
            held, streaming = await remote.open([20], LONG), await remote.open([21], LONG)
            waiting = asyncio.create_task(held.verify([]))
            await engine.entered.wait()
            stream = streaming.generate()
            await anext(stream)
            proxy.refusing = True
            proxy.cut("reset")
            for stopped in (waiting, read_out(stream)):
                with pytest.raises(EngineStopped, match="not resumed within 0.3 s"):
                    await stopped
            await asyncio.gather(here.finished, there.finished)
            assert "not resumed" in there.reason
            assert not here.away
            with pytest.raises(EngineStopped, match="not resumed"):
                await remote.stats()
        stats = await engine.stats()
        assert stats.sessions == 0
        assert proxy.cuts == 1
    assert stats.cancelled == 4
    assert asyncio.all_tasks() == before


async def read_out(stream: AsyncIterator[object]) -> None:
    async for _ in stream:
        pass


async def test_a_side_that_does_not_wait() -> None:
    """If only one of them would, a break is the end for both, at once."""
    for here_s, there_s in ((PATIENT, WireSettings()), (WireSettings(), PATIENT)):
        async with linked(NullEngine(), settings=here_s, there=there_s) as (remote, here, there, proxy):
            proxy.cut("reset")
            with pytest.raises(EngineStopped):
                await remote.stats()
            await asyncio.gather(here.finished, there.finished)
            assert (proxy.cuts, proxy.dials) == (1, 1)


async def test_the_other_side_has_restarted() -> None:
    """The other side does not know the connection, so waiting would be useless."""
    engine = Held()
    async with asyncio.timeout(20), serve_engines({"engine": engine}, settings=PATIENT) as second:
        async with (
            serve_engines({"engine": engine}, settings=PATIENT) as first,
            proxy_to(first.address) as proxy,
        ):
            connection = await connect(proxy.address, settings=PATIENT)
            session = await connection.engine("engine").open([20], LONG)
            waiting = asyncio.create_task(session.verify([]))
            await engine.entered.wait()
            proxy._upstream = second.address
            proxy.cut("reset")
            with pytest.raises(EngineStopped, match="does not know the connection any more"):
                await waiting
            await connection.finished
            assert proxy.cuts == 1
            (left,) = first.connections
            assert left.away  # and ends with its endpoint
        assert (await engine.stats()).cancelled == 1


@pytest.mark.parametrize("side", ["here", "there"])
async def test_a_deliberate_close_is_final(side: str) -> None:
    """Also in the middle of a stream."""
    engine = NullEngine(context=2**40)
    async with linked(engine) as (remote, here, there, proxy):
        session = await remote.open([20], LONG)
        stream = session.generate()
        await anext(stream)
        closing, told = (here, there) if side == "here" else (there, here)
        async with asyncio.timeout(4):  # less than hello_s, after which they would do without good-byes
            await closing.close()
            await told.finished
        assert told.reason == "the other side closed the connection"
        with pytest.raises(EngineStopped):
            await read_out(stream)
        assert proxy.dials == 1
        assert (await engine.stats()).cancelled == 1


async def test_both_close_at_once() -> None:
    async with linked(NullEngine()) as (_, here, there, _), asyncio.timeout(4):
        await asyncio.gather(here.close(), there.close())


async def test_closing_while_away() -> None:
    """The other side learns of it when it asks."""
    for side in ("here", "there"):
        async with linked(NullEngine()) as (_, here, there, proxy):
            proxy.refusing = True
            proxy.cut("reset")
            await until(lambda: here.away and there.away)
            if side == "here":
                await here.close()
                await there.close()
            else:
                await there.close()
                proxy.refusing = False
                await here.finished
                assert "does not know" in here.reason


async def test_a_protocol_error_is_final() -> None:
    async with linked(NullEngine(context=2**40)) as (remote, here, there, proxy):
        session = await remote.open([20], LONG)
        here.send(bytearray(frames.HEADER.pack(1, frames.VERSION) + b"\xc1"))
        await asyncio.gather(here.finished, there.finished)
        assert "malformed" in here.reason
        assert "malformed" in there.reason
        assert proxy.dials == 1
        await session.cancel()


async def test_what_is_kept_is_bounded() -> None:
    """A sender that ignores `writable` loses the connection; one that waits for it does not."""
    engine, settings = NullEngine(context=2**40), replace(PATIENT, max_kept=400_000)
    async with linked(engine, settings=settings) as (remote, here, there, proxy):
        session = await remote.open([20], LONG)
        stream = session.generate()
        await anext(stream)
        proxy.refusing = True
        proxy.cut("reset")
        await until(lambda: there.away and not there._writable.is_set())
        assert there._resume_buffer is not None
        assert 200_000 < there._resume_buffer.kept_bytes < 210_000
        made = (await engine.stats()).tokens_generated
        proxy.refusing = False
        for _ in range(5000):  # what was kept comes, and more
            await anext(stream)
        assert (await engine.stats()).tokens_generated > made
        assert not there.closed.done()
        proxy.refusing = True
        proxy.cut("reset")
        await until(lambda: here.away)
        large = bytes(50_000)
        for _ in range(9):
            here.tell(frames.Verify(10**6, 0, "engine", large))
        await here.finished
        assert "more than 400000 bytes are not acknowledged" in here.reason
        proxy.refusing = False
        await there.close()
        with pytest.raises(EngineStopped, match="not acknowledged"):
            await read_out(stream)
        assert proxy.cuts == 2


async def test_a_fast_stream_does_not_pile_up() -> None:
    async with linked(NullEngine(context=2**40)) as (remote, _, there, _):
        session = await remote.open([20], Sampling(max_tokens=20_000))
        most, resume_buffer = 0, there._resume_buffer
        assert resume_buffer is not None
        async for _ in session.generate():
            most = max(most, resume_buffer.kept_bytes)
        assert resume_buffer.sent * 80 > 5 * ACK_BYTES
        assert most < 3 * ACK_BYTES


async def test_the_new_connection_wins() -> None:
    """One side moves to another network; the other still believes in the old connection."""
    engine = NullEngine(context=2**40)
    async with linked(engine) as (remote, here, there, proxy):
        session = await remote.open([20], Sampling(max_tokens=TOKENS))
        stream = session.generate()
        ids = list((await anext(stream)).ids)
        went: list[bool] = []
        there.on_away.append(lambda: went.append(there.away))
        there.on_return.append(lambda: went.append(there.away))
        proxy.cut("silent")
        assert not there.away
        here.part("another network")
        ids += [i async for part in stream for i in part.ids]
        assert ids == await alone([20], TOKENS)
        assert went == [False, False]  # it was away for a moment only
        assert (proxy.cuts, proxy.dials) == (1, 2)
        assert "another connection" not in there.reason


async def test_connections_go_without_a_trace() -> None:
    """A resumable connection is forgotten once it is closed."""
    gone = []
    async with serve_engines({}, settings=PATIENT) as endpoint:
        for _ in range(3):
            connection = await connect(endpoint.address, settings=PATIENT)
            (accepted,) = endpoint.connections
            gone += [weakref.ref(connection), weakref.ref(accepted)]
            await connection.close()
            await accepted.finished
        await until(lambda: not endpoint.connections)
        del connection, accepted
        gc.collect()
        assert not any(there() for there in gone)


class Unlucky(Dialler):
    """Fails so often before it is answered. at_s: when it dialled."""

    def __init__(self, fails: int, answer: frames.Welcome | frames.Error) -> None:
        super().__init__("nowhere:1", None, None, PATIENT, {})
        self.left, self.answer, self.at_s = fails, answer, list[float]()
        self.transport = Mock(asyncio.Transport)

    async def dial(
        self, resume_buffer: ResumeBuffer | None = None
    ) -> tuple[asyncio.Transport, frames.Welcome | frames.Error]:
        self.at_s.append(asyncio.get_running_loop().time())
        self.left -= 1
        if self.left >= 0:
            raise EngineStopped("no connection")
        return self.transport, self.answer


WELCOME = frames.Welcome(0, 0, {})


@pytest.mark.virtual_time
async def test_pauses_between_dials_double_up_to_a_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda least, most: most)
    dialler = Unlucky(8, WELCOME)
    assert await dialler.dial_again(ResumeBuffer(b"name", 1.0, 1000)) == (dialler.transport, WELCOME)
    pauses_s = [later - sooner for sooner, later in pairwise(dialler.at_s)]
    assert pauses_s == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])
    dialler.transport.abort.assert_not_called()


@pytest.mark.virtual_time
async def test_devices_do_not_dial_at_the_same_moment() -> None:
    firsts_s = set()
    for _ in range(50):
        dialler = Unlucky(1, WELCOME)
        await dialler.dial_again(ResumeBuffer(b"name", 1.0, 1000))
        firsts_s.add(dialler.at_s[1] - dialler.at_s[0])
    assert len(firsts_s) > 40
    assert min(firsts_s) + 1e-9 >= 0.025
    assert max(firsts_s) <= 0.05 + 1e-9


@pytest.mark.virtual_time
async def test_a_refusal_for_good_ends_the_dialling() -> None:
    refused = Unlucky(2, frames.Error.of(InvalidRequest("wrong token")))
    with pytest.raises(InvalidRequest, match="wrong token"):
        await refused.dial_again(ResumeBuffer(b"name", 1.0, 1000))
    assert len(refused.at_s) == 3
    refused.transport.abort.assert_called_once()


@pytest.mark.virtual_time
async def test_a_connection_that_four_processes_do_not_know_is_lost() -> None:
    """Dial again at once: another process may listen at the address."""
    unknown = Unlucky(0, frames.Error.of(frames.UnknownConnection("no such connection")))
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(frames.UnknownConnection):
        await unknown.dial_again(ResumeBuffer(b"name", 1.0, 1000))
    assert unknown.at_s == [began_s] * 4


def test_hello_tells_how_much_was_received() -> None:
    dialler = Dialler("nowhere:1", "t", None, PATIENT, {}, b"me")
    new = dialler._hello(None)
    assert (new.session, new.seq, new.token, new.resume_s) == (0, 0, "t", 60.0)
    assert (new.name, new.received, new.instance) == (b"", 0, b"me")
    resume_buffer = ResumeBuffer(b"name", 1.0, 1000)
    resume_buffer.take(10)
    again = dialler._hello(resume_buffer)
    assert (again.name, again.received) == (b"name", 1)
