from __future__ import annotations

import asyncio
import time
from functools import partial
from itertools import accumulate, pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.link.link import Link, LinkModel, LinkProfile, Pipe, Trace, down_model, up_model
from tandem.cluster.link.state import LinkState
from tandem.cluster.wire.client import connect
from tandem.cluster.wire.listener import serve_engines
from tandem.cluster.wire.server import EngineHandler
from tandem.engine.base import Sampling
from tandem.engine.null.engine import NullEngine
from tests.virtual import in_virtual_time, now_s

frames = st.lists(st.tuples(st.floats(0, 2), st.integers(0, 100_000)), min_size=1, max_size=30).map(
    lambda pairs: list(zip(accumulate(gap for gap, _ in pairs), (size for _, size in pairs), strict=True))
)  # (time handed over, bytes), in order of time
rates = st.floats(1e3, 1e7)
traces = st.tuples(st.lists(st.tuples(st.floats(0.01, 2), st.just(0.0) | rates), max_size=6), rates).map(
    lambda t: (
        *zip(accumulate([0.0, *(gap for gap, _ in t[0])]), [*(r for _, r in t[0]), t[1]], strict=True),
    )
)


delays = st.floats(0, 0.2)
delay_traces = st.lists(st.tuples(st.floats(0.01, 2), delays), min_size=1, max_size=6).map(
    lambda steps: tuple(
        zip(accumulate([0.0, *(gap for gap, _ in steps[1:])]), (d for _, d in steps), strict=True)
    )
)


@given(frames, delays | delay_traces, st.floats(0, 1), rates | traces, st.integers(0, 9))
def test_first_in_first_out(
    sent: list[tuple[float, int]], delay: float | Trace, jitter: float, rate: float | Trace, seed: int
) -> None:
    least_s = min(d for _, d in delay) if isinstance(delay, tuple) else delay
    model = LinkModel(delay, least_s * jitter, rate, seed)
    arrivals = [model.arrival(now, size) for now, size in sent]
    assert all(a <= b for a, b in pairwise(arrivals))
    assert all(a >= now + least_s * (1 - jitter) - 1e-9 for a, (now, _) in zip(arrivals, sent, strict=True))


@given(frames, delay_traces)
def test_a_round_trip_time_that_changes(sent: list[tuple[float, int]], trace: Trace) -> None:
    """A frame takes what the link took when it left, unless it would overtake the one before it."""
    model, last_s = LinkModel(trace, 0.0, None, 0), 0.0
    for now, size in sent:
        delay_s = [d for t, d in trace if t <= now][-1]
        last_s = max(last_s, now + delay_s)
        assert model.arrival(now, size) == last_s


def test_both_directions_follow_the_trace() -> None:
    profile = LinkProfile(rtt_trace=((0.0, 0.01), (1.0, 0.08)), up_bytes_per_s=100.0)
    assert not profile.idle
    down = down_model(profile)
    assert [down.arrival(t, 10) for t in (0.5, 1.0)] == pytest.approx([0.505, 1.04])
    up = up_model(profile)
    assert [up.arrival(t, 10) for t in (0.5, 0.95)] == pytest.approx([0.605, 1.09]), "it leaves at 1.05"


@given(frames, rates)
def test_constant_bandwidth(sent: list[tuple[float, int]], rate: float) -> None:
    model = LinkModel(0.0, 0.0, rate, 0)
    free_s = 0.0
    for now, size in sent:
        free_s = max(now, free_s) + size / rate
        assert model.arrival(now, size) == pytest.approx(free_s, rel=1e-9, abs=1e-9)


@given(frames, traces)
def test_carries_what_the_trace_allows(
    sent: list[tuple[float, int]], trace: tuple[tuple[float, float], ...]
) -> None:
    """The pipe carries exactly what the trace allows, from when it was last empty until an arrival."""

    def allowed(until_s: float) -> float:
        ends = [*(t for t, _ in trace[1:]), float("inf")]
        return sum(
            rate * max(0.0, min(until_s, end) - start) for (start, rate), end in zip(trace, ends, strict=True)
        )

    model = LinkModel(0.0, 0.0, trace, 0)
    busy_since, carried, arrival = 0.0, 0, 0.0
    for now, size in sent:
        if now > arrival:
            busy_since, carried = now, 0
        carried += size
        arrival = model.arrival(now, size)
        assert allowed(arrival) - allowed(busy_since) == pytest.approx(carried, rel=1e-6, abs=1e-2)


@given(frames, rates | traces, st.integers(1, 99))
def test_a_frame_is_its_parts(sent: list[tuple[float, int]], rate: float, percent: int) -> None:
    whole, parts = LinkModel(0.01, 0.0, rate, 0), LinkModel(0.01, 0.0, rate, 0)
    for now, size in sent:
        first = size * percent // 100
        parts.arrival(now, first)
        assert parts.arrival(now, size - first) == pytest.approx(whole.arrival(now, size), rel=1e-9)


def test_an_outage_holds_frames_up() -> None:
    model = LinkModel(0.0, 0.0, ((0.0, 100.0), (1.0, 0.0), (3.0, 100.0)), 0)
    assert [model.arrival(0.5, 50), model.arrival(1.0, 100)] == pytest.approx([1.0, 4.0])


def test_jitter_is_seeded_and_bounded() -> None:
    profile = LinkProfile(rtt_s=0.1, jitter_s=0.05, seed=7)
    arrivals = list(map(up_model(profile).arrival, range(99), range(99)))
    assert arrivals == list(map(up_model(profile).arrival, range(99), range(99)))
    assert arrivals != list(map(down_model(profile).arrival, range(99), range(99)))
    delays = [arrival - now for now, arrival in enumerate(arrivals)]
    assert min(delays) >= 0.0
    assert max(delays) <= 0.1
    assert max(delays) - min(delays) > 0.08


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("rtt_s: -1", "rtt_s"),
        ("{rtt_s: 0.1, jitter_s: 0.06}", "jitter_s"),
        ("up_bytes_per_s: 0", "up_bytes_per_s"),
        ("down_trace: [[1, 5]]", "down_trace"),
        ("up_trace: [[0, 5], [1, 0]]", "up_trace"),
        ("up_trace: [[0, 5], [2, -1], [3, 1]]", "up_trace"),
        ("rtt_trace: [[1, 0.1]]", "rtt_trace"),
        ("rtt_trace: [[0, 0.1], [2, 0.1], [2, 0.2]]", "rtt_trace"),
        ("rtt_trace: [[0, 0.1], [2, -0.1]]", "rtt_s"),
        ("{rtt_trace: [[0, 0.1], [2, 0.02]], jitter_s: 0.02}", "jitter_s"),
        ("latency: 3", "latency"),
    ],
)
def test_profiles_say_what_is_wrong(text: str, key: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=key):
        msgspec.yaml.decode(text, type=LinkProfile)


async def test_a_live_pipe_keeps_order_and_time() -> None:
    pipe = Pipe(LinkModel(0.02, 0.02, 1e6, 3))
    start_s = time.monotonic()
    came: list[tuple[int, float]] = []
    done = asyncio.Event()

    def deliver(i: int) -> None:
        came.append((i, time.monotonic() - start_s))
        if i == 49:
            done.set()

    for i in range(50):
        pipe.carry(1000, partial(deliver, i))
    await done.wait()
    assert [i for i, _ in came] == list(range(50))
    assert all(t >= (i + 1) * 0.001 - 0.001 for i, t in came)


@given(frames, delay_traces, rates | traces, st.integers(0, 9))
def test_a_pipe_in_virtual_time_is_the_model(
    sent: list[tuple[float, int]], delay: Trace, rate: float | Trace, seed: int
) -> None:
    """Frames arrive when the model says, counted from when the pipe was made, and it counts what they waited."""
    jitter_s = min(d for _, d in delay)

    @in_virtual_time
    async def carry() -> None:
        await asyncio.sleep(7.0)
        pipe, model = Pipe(LinkModel(delay, jitter_s, rate, seed)), LinkModel(delay, jitter_s, rate, seed)
        expected, came = list[float](), list[float]()
        for at_s, size in sent:
            await asyncio.sleep(7.0 + at_s - now_s())
            expected.append(7.0 + model.arrival(now_s() - 7.0, size))
            pipe.carry(size, lambda: came.append(now_s()))
        await asyncio.sleep(max(expected) - now_s() + 1.0)
        assert came == pytest.approx(expected, abs=1e-6)
        assert pipe.sent_bytes == sum(size for _, size in sent)
        assert pipe.waited_s == model.waited_s

    carry()


@given(frames, delays, rates)
def test_what_frames_wait_is_what_they_take_beyond_the_delay(
    sent: list[tuple[float, int]], delay_s: float, rate: float
) -> None:
    model = LinkModel(delay_s, 0.0, rate, 0)
    waited_s = sum(model.arrival(now, size) - now - delay_s for now, size in sent)
    assert model.waited_s == pytest.approx(waited_s, abs=1e-9)
    idle = LinkModel(delay_s, 0.0, None, 0)
    for now, size in sent:
        idle.arrival(now, size)
    assert (idle.waited_s, idle.sent_bytes) == (pytest.approx(0.0, abs=1e-9), sum(size for _, size in sent))


def test_a_pipe_made_outside_a_loop_begins_when_it_is_first_used() -> None:
    pipe = Pipe(LinkModel(((0.0, 0.1), (5.0, 9.0)), 0.0, None, 0))

    @in_virtual_time
    async def use() -> None:
        await asyncio.sleep(100.0)
        for expected_s in (100.1, 105.1 + 8.9):
            came = asyncio.Event()
            pipe.carry(10, came.set)
            await came.wait()
            assert now_s() == pytest.approx(expected_s)
            await asyncio.sleep(105.0 - now_s())

    use()


async def test_links_of_one_connection_are_apart() -> None:
    """A slow device does not hold up another of the same host."""
    engines, slow = {"a": NullEngine(), "b": NullEngine()}, Link(LinkProfile(rtt_s=2.0))
    handler = partial(EngineHandler, engines, links={"a": slow})
    async with serve_engines(engines, handler=handler) as endpoint:
        connection = await connect(endpoint.address)
        a, b = connection.engine("a"), connection.engine("b")
        start_s = time.monotonic()
        opening = asyncio.create_task(a.open([20], Sampling()))
        session = await b.open([20], Sampling())
        for _ in range(5):
            await session.verify([])
        assert not opening.done()
        await opening
        assert time.monotonic() - start_s >= 1.99
        await connection.close()


def test_a_lost_frame_comes_a_round_trip_later_and_overtakes_none() -> None:
    profile = LinkProfile(rtt_s=0.1, loss=0.3, seed=7)
    arrivals = list(map(up_model(profile).arrival, range(99), range(99)))
    late = [round((arrival - now - 0.05) / 0.1, 9) for now, arrival in enumerate(arrivals)]
    assert all(times == int(times) for times in late)
    assert 10 < sum(times > 0 for times in late) < 50
    model = up_model(profile)
    at_once = [model.arrival(0.0, 1) for _ in range(99)]
    assert at_once == sorted(at_once)


@in_virtual_time
async def test_a_cut_link_keeps_what_it_is_given_until_it_is_mended() -> None:
    link, came = Link(LinkProfile(rtt_s=2.0)), list[tuple[str, float]]()

    def send(name: str, size: int = 10) -> None:
        link.up.carry(size, lambda: came.append((name, now_s())))

    send("under way")
    link.change(link.profile, cut=True)
    send("kept")
    await asyncio.sleep(5.0)
    assert [name for name, _ in came] == ["under way"]
    slow = LinkProfile(rtt_s=0.0, up_bytes_per_s=10.0, loss=0.5)
    link.change(slow, cut=False)
    send("throttled", 20)
    assert (link.profile, link.state) == (slow, LinkState(10.0, None, 0.5))
    await asyncio.sleep(5.0)
    assert came[1:] == [("kept", pytest.approx(6.0)), ("throttled", pytest.approx(8.0))]
    assert link.up.sent_bytes == 40
