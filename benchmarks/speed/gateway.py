"""Throughput of the HTTP API: the deployed Serve application with a null model, over HTTP, on two cores.

The application is started as `tandem up` starts it: proxy, ingress, router, scheduler and one verifier,
whose engine has no model. Everything, this client included, shares the same two cores.

tokens_per_s: 64 streams at once, the engine as fast as it goes; answers follow each other at once.
paced_share: the same with an engine that gives every stream 200 tokens/s one by one, as a share of what that
engine delivers when it is called directly (timers are late by a little, so not quite 12,800 tokens/s).
ttft_added_ms: the first text of single requests on the idle application, over HTTP, less the first token
of the same engine called directly, in alternation; medians.
gateway_ratio: tokens_per_s of this tree over that of another commit, each started anew in turns; the median pair.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import uvloop

from tandem.benchmarks import baseline, report
from tandem.benchmarks.application import application
from tandem.engine.base import Sampling
from tandem.engine.null.engine import NullEngine

CORES = 2
PACE = 200.0  # tokens/s of a stream
CONTEXT = 4096


class Stream(asyncio.Protocol):
    """One streamed chat over a connection of its own, read as cheaply as Python can: bytes are looked at
    for the first event and for the usage that the last ones bring."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._tail = b""
        self.began_s = self.first_s = 0.0
        self.events = 0
        self.tokens: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.began_s = time.perf_counter()
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        events = data.count(b"data: ")
        if events and not self.events:
            self.first_s = time.perf_counter()
        self.events += events
        self._tail = (self._tail + data)[-1000:]
        if b"[DONE]" in self._tail:
            usage = re.search(rb'"completion_tokens":(\d+)', self._tail)
            self.tokens.set_result(int(usage[1]) if usage else 0)
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.tokens.done():
            self.tokens.set_exception(RuntimeError(f"the answer broke off: {self._tail!r}"))


@dataclass(slots=True)
class Load:
    """Results of some streams.

    tokens_per_s: of all of them.
    events_per_s: chunks of all of them.
    ttft_s: of each answer.
    """

    tokens_per_s: float
    events_per_s: float
    ttft_s: list[float]


def null_application(tokens_per_s: float | None) -> AbstractContextManager[tuple[str, int]]:
    """The Serve application with a null engine of this pace in each stream; its host and port."""
    engine = {"kind": "null", "context": CONTEXT, "tokens_per_s": tokens_per_s}
    return application(
        {
            "model": "null",
            "tokenizer": "target",
            "verifier": {"replicas": 1, "engine": engine},
            "drafter": {"replicas": 0},
            "expander": {"replicas": 0},
        }
    )


async def chat(address: tuple[str, int], tokens: int) -> tuple[int, Stream]:
    """Read one answer of so many tokens to its end."""
    body = {
        "model": "null",
        "messages": [{"role": "user", "content": "Tell me about the town of Marworth."}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    encoded = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(encoded)}\r\n\r\n"
    )
    stream = Stream(head.encode() + encoded)
    await asyncio.get_running_loop().create_connection(lambda: stream, *address)
    return await stream.tokens, stream


async def load(address: tuple[str, int], streams: int, answers: int, tokens: int) -> Load:
    """Run `streams` streams at once, each of `answers` answers one after the other."""

    async def one() -> list[tuple[int, Stream]]:
        return [await chat(address, tokens) for _ in range(answers)]

    began = time.perf_counter()
    done = [pair for pairs in await asyncio.gather(*(one() for _ in range(streams))) for pair in pairs]
    wall_s = time.perf_counter() - began
    return Load(
        sum(tokens for tokens, _ in done) / wall_s,
        sum(stream.events for _, stream in done) / wall_s,
        [stream.first_s - stream.began_s for _, stream in done],
    )


async def idle_ttft_s(address: tuple[str, int], times: int) -> tuple[list[float], list[float]]:
    """(over HTTP, of the engine itself) in alternation, seconds."""
    over_http, own = [], []
    engine = NullEngine(context=CONTEXT)
    for _ in range(times):
        _, stream = await chat(address, 8)
        over_http.append(stream.first_s - stream.began_s)
        began = time.perf_counter()
        session = await engine.open(range(16, 32), Sampling(max_tokens=8))
        await anext(session.generate())
        own.append(time.perf_counter() - began)
        await session.cancel()
    return over_http, own


async def engine_alone(streams: int, tokens: int) -> float:
    """Tokens/s of the paced engine without anything around it."""
    engine = NullEngine(PACE, context=CONTEXT)

    async def one() -> None:
        session = await engine.open(range(16, 32), Sampling(max_tokens=tokens))
        async for _ in session.generate():
            pass

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(streams)))
    return streams * tokens / (time.perf_counter() - began)


def fastest(streams: int, repeat: int, tokens: int) -> None:
    """Start the application in a process of its own, and print its highest tokens/s."""
    with null_application(None) as address:
        uvloop.run(load(address, streams, 1, 20))  # warm
        loads = [uvloop.run(load(address, streams, 3, tokens)) for _ in range(repeat)]
    print(json.dumps({"tokens_per_s": median(run.tokens_per_s for run in loads)}))


_FASTEST_THERE = """
import json, sys, uvloop
from statistics import median
from benchmarks.gateway import load, null_application
sys.executable = {executable!r}  # it starts the `tandem` beside it
with null_application(None) as address:
    uvloop.run(load(address, {streams}, 1, 20))
    loads = [uvloop.run(load(address, {streams}, 3, {tokens})) for _ in range({repeat})]
print(json.dumps({{"tokens_per_s": median(run.tokens_per_s for run in loads)}}))
"""


def old_side(tree: Path | None, streams: int, repeat: int, tokens: int) -> baseline.Side | None:
    """Return `fastest` of another tree, None without one. In trees without a package tandem it is no function, and
    starts the command `tandem` beside the interpreter."""
    if tree is None:
        return None
    if (tree / "tandem").is_dir():
        name = baseline.module(tree, "tandem.benchmarks.speed.gateway", "tandem.benchmarks.gateway")
        return baseline.Side(f"from {name} import fastest; fastest{(streams, repeat, tokens)!r}", tree)
    tandem = tree.with_name("tandem")
    tandem.write_text(f"#!{sys.executable}\nfrom app.cli import main\nmain()\n")
    tandem.chmod(0o755)
    code = _FASTEST_THERE.format(
        executable=str(tandem.with_name("python")), streams=streams, repeat=repeat, tokens=tokens
    )
    return baseline.Side(code, tree)


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("gateway", __doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5, help="times that each load is measured")
    parser.add_argument("--tokens", type=int, default=400, help="of each answer")
    parser.add_argument("--pairs", type=int, default=3, help="starts of either side to compare (default 3)")
    baseline.add_option(parser)
    options = parser.parse_args(arguments)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    shape = (options.streams, 3, options.tokens)

    with null_application(None) as address:
        uvloop.run(load(address, options.streams, 1, 20))  # warm
        over_http, own = uvloop.run(idle_ttft_s(address, 100))
        loads = [uvloop.run(load(address, *shape)) for _ in range(options.repeat)]
    with null_application(PACE) as address:
        uvloop.run(load(address, options.streams, 1, 20))
        paced, alone = [], []
        for _ in range(options.repeat):
            alone.append(uvloop.run(engine_alone(options.streams, options.tokens)))
            paced.append(uvloop.run(load(address, *shape)))

    case = options.streams, options.repeat, options.tokens
    with baseline.worktree(options.base) as tree:
        old = old_side(tree, *case)
        new = baseline.Side(f"from tandem.benchmarks.speed.gateway import fastest; fastest{case!r}")
        here, there = baseline.alternate(new, old, options.pairs if old else 0, "both trees")

    rows = [
        (name, *(report.spread(values) for values in measured))
        for name, measured in (
            ("as fast as it goes", _columns(loads)),
            (f"{PACE:g} tokens/s each", _columns(paced)),
        )
    ]
    report.table(
        f"{options.streams} streams on {CORES} cores", ("engine", "tokens/s", "chunks/s", "TTFT ms"), rows
    )
    print(f"The paced engine alone: {report.spread(alone)} tokens/s")
    report.table(
        "First text on the idle application",
        ("over HTTP", "the engine itself"),
        [(report.milliseconds(over_http), report.milliseconds(own))],
    )
    figures = {
        "tokens_per_s": round(median(run.tokens_per_s for run in loads)),
        "ttft_added_ms": round(1e3 * (median(over_http) - median(own)), 2),
        "paced_share": round(median(run.tokens_per_s for run in paced) / median(alone), 3),
    }
    if there:
        ratios = baseline.ratios(here, there, _tokens_per_s)
        report.table(
            f"tokens/s against {options.base}, in alternation (median [min … max])",
            ("here", "there", "ratio"),
            [tuple(report.spread(v) for v in (_of(here), _of(there), ratios))],
        )
        figures["gateway_ratio"] = round(median(ratios), 3)
    report.figures("gateway", figures)


def _tokens_per_s(run: baseline.Run) -> float:
    return float(run.said["tokens_per_s"])


def _of(runs: list[baseline.Run]) -> list[float]:
    return [_tokens_per_s(run) for run in runs]


def _columns(runs: list[Load]) -> tuple[list[float], list[float], list[float]]:
    return (
        [run.tokens_per_s for run in runs],
        [run.events_per_s for run in runs],
        [1e3 * median(run.ttft_s) for run in runs],
    )
