"""Speed of the wire between two processes, and accuracy of its emulated links.

Speculative rounds go the whole way: RemoteEngine.verify here, a NullEngine's verify there. Hidden states
go up as frames of 1 MB to an engine that answers with a small one. Links: the median round trip of single
rounds against the configured one, and the time that a train of frames takes against the bandwidth.

rounds_ratio: rounds_per_s of this tree over that of another commit (--base), in alternation; the median pair.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection as Pipe
from statistics import median

import msgspec
import numpy as np
import uvloop

from tandem.benchmarks import baseline, report
from tandem.cluster.link.link import Link, LinkProfile
from tandem.cluster.wire.client import Connection, connect
from tandem.cluster.wire.listener import serve_engines
from tandem.engine.base import CAPABILITIES, Forward, Forwarded, Sampling, Session, Tensor
from tandem.engine.null.engine import NullEngine, NullSession

SESSIONS = 64
DRAFTS = list(range(100, 108))
MEGABYTE = 1_000_000
RTTS_S = (0.08, 0.03, 0.01, 0.005)
BANDWIDTHS = (2e6, 20e6)
Measurement = Callable[[Connection], Coroutine[None, None, float]]
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


class MiddleSession(NullSession):
    """Takes hidden states and gives back a little of those that are wanted."""

    async def _forward(self, operation: Forward) -> Forwarded:
        return Forwarded(Tensor.of(operation.hidden.numpy()[-operation.wanted :, :8]))


class Middle(NullEngine):
    session_class = MiddleSession

    def __init__(self) -> None:
        super().__init__(context=2**40)
        self.info = msgspec.structs.replace(self.info, capabilities=CAPABILITIES)


def _serve(loop: str, pipe: Pipe) -> None:
    async def serve() -> None:
        engine = Middle()
        async with serve_engines({"null": engine}) as endpoint:
            pipe.send(endpoint.address)
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(serve())


@asynccontextmanager
async def _endpoint(loop: str) -> AsyncIterator[Connection]:
    """A connection to an engine in another process, whose event loop is of the same kind."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(loop, there))
    process.start()
    connection = await connect(here.recv())
    try:
        yield connection
    finally:
        await connection.close()
        here.send("done")
        process.join()


async def rounds_per_s(connection: Connection, seconds: float = 2.0) -> float:
    """Speculative rounds a second of 64 sessions at once."""
    engine = connection.engine("null")
    sessions = [await engine.open([5, 6, 7], Sampling(max_tokens=2**30)) for _ in range(SESSIONS)]
    end_s = time.perf_counter() + seconds

    async def drive(session: Session) -> int:
        rounds = 0
        while time.perf_counter() < end_s:
            await session.verify(DRAFTS)
            rounds += 1
        return rounds

    start_s = time.perf_counter()
    rounds = await asyncio.gather(*map(drive, sessions))
    elapsed_s = time.perf_counter() - start_s
    for session in sessions:
        await session.cancel()
    return sum(rounds) / elapsed_s


async def hidden_mb_per_s(connection: Connection, frames: int = 400, in_flight: int = 4) -> float:
    """Megabytes a second of hidden states in frames of 1 MB."""
    engine = connection.engine("null")
    hidden = Tensor.of(np.zeros((MEGABYTE // 4096, 1024), np.float32))
    megabytes = hidden.data.nbytes / MEGABYTE

    async def drive() -> None:
        session = await engine.open([5], Sampling())
        for position in range(frames // in_flight):
            await session.forward(position, hidden, 1)
        await session.cancel()

    start_s = time.perf_counter()
    await asyncio.gather(*(drive() for _ in range(in_flight)))
    return frames * megabytes / (time.perf_counter() - start_s)


async def rtt_error(connection: Connection, rounds: int = 60) -> float:
    """Largest relative error of the median round trip, over several configured ones."""
    errors = []
    for rtt_s in RTTS_S:
        engine = connection.engine("null", Link(LinkProfile(rtt_s=rtt_s)))
        session = await engine.open([5], Sampling(max_tokens=2**30))
        measured_s = []
        for _ in range(rounds):
            start_s = time.perf_counter()
            await session.verify(DRAFTS)
            measured_s.append(time.perf_counter() - start_s)
        errors.append(abs(median(measured_s) / rtt_s - 1))
        await session.cancel()
    return max(errors)


async def bandwidth_error(connection: Connection, frames: int = 8) -> float:
    """Largest relative error of the time a train of 250 kB frames takes, over several bandwidths."""
    errors = []
    hidden = Tensor.of(np.zeros((MEGABYTE // 16384, 1024), np.float32))
    for rate in BANDWIDTHS:
        engine = connection.engine("null", Link(LinkProfile(up_bytes_per_s=rate, down_bytes_per_s=rate)))
        sessions = [await engine.open([5], Sampling()) for _ in range(frames)]
        start_s = time.perf_counter()
        await asyncio.gather(*(session.forward(0, hidden, 1) for session in sessions))
        seconds = time.perf_counter() - start_s
        errors.append(abs(seconds / (frames * hidden.data.nbytes / rate) - 1))
        for session in sessions:
            await session.cancel()
    return max(errors)


def measure(loop: str, what: Measurement) -> float:
    """One figure, between two fresh processes' worth of event loops."""

    async def run() -> float:
        async with _endpoint(loop) as connection:
            return await what(connection)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(run())


_ROUNDS = """
import json
from {module} import measure, rounds_per_s
print(json.dumps({{"rounds_per_s": measure("asyncio", rounds_per_s)}}))
"""


def against(commit: str, pairs: int) -> dict[str, float]:
    """Return rounds_ratio; nothing where the commit is not at hand."""
    name = "tandem.benchmarks.speed.wire"
    with baseline.worktree(commit) as tree:
        if tree is None:
            return {}
        new = baseline.Side(_ROUNDS.format(module=name))
        old = baseline.Side(_ROUNDS.format(module=baseline.module(tree, name, "benchmarks.wire")), tree)
        here, there = baseline.alternate(new, old, pairs, "both trees")
    ratios = baseline.ratios(here, there, lambda run: float(run.said["rounds_per_s"]))
    print(f"Rounds/s against {commit}, in alternation: {report.spread(ratios)}")
    return {"rounds_ratio": round(median(ratios), 3)}


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("wire", __doc__)
    parser.add_argument("--pairs", type=int, default=5, help="runs of either tree to compare (default 5)")
    baseline.add_option(parser, default="")
    options = parser.parse_args(arguments)
    parts: dict[str, tuple[Measurement, str, int]] = {
        "rounds_per_s": (rounds_per_s, ">= 20000", 3),
        "hidden_mb_per_s": (hidden_mb_per_s, ">= 300", 3),
        "rtt_error": (rtt_error, "<= 0.05", 3),
        "bandwidth_error": (bandwidth_error, "<= 0.05", 3),
    }
    figures: dict[str, float] = {}
    rows: list[list[str]] = []
    for name, (what, bar, rounds) in parts.items():
        measured: dict[str, list[float]] = {loop: [] for loop in LOOPS}
        for _ in report.progress(range(rounds), name):
            for loop in LOOPS:  # in turn, so that what disturbs the machine disturbs both alike
                measured[loop].append(measure(loop, what))
        for loop, values in measured.items():
            rows.append([f"{name} ({loop})", report.spread(values), bar])
            figures[name if loop == "asyncio" else f"{name}_{loop}"] = float(f"{median(values):.5g}")
    report.table("The wire between two processes", ["", "median [min … max]", "bar"], rows)
    report.figures("wire", figures | against(options.base, options.pairs))
