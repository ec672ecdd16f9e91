"""What the front door carries: the deployed Serve application with a null model, over HTTP, on two cores.

The application is started as `tandem up` starts it: proxy, ingress, router, scheduler and one verifier,
whose engine has no model. Everything, this client included, shares the same two cores.

tokens_per_s: 64 streams at once, the engine as fast as it goes; answers follow each other at once.
paced_share: the same with an engine that gives every stream 200 tokens/s one by one, as a share of what that
engine delivers when it is called directly (timers are late by a little, so not quite 12,800 tokens/s).
ttft_added_ms: the first text of single requests on the idle application, over HTTP, less the first token
of the same engine called directly, in alternation; medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median

import uvloop

from benchmarks import report
from benchmarks.application import application
from engine.base import Sampling
from engine.null_engine import NullEngine

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
    """tokens_per_s of all streams; events: chunks/s of all; ttft_s: of each answer."""

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
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(encoded)}\r\n\r\n"
    stream = Stream(head.encode() + encoded)
    await asyncio.get_running_loop().create_connection(lambda: stream, *address)
    return await stream.tokens, stream


async def load(address: tuple[str, int], streams: int, answers: int, tokens: int) -> Load:
    """So many streams at once, each of so many answers one after the other."""

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
    for session in range(times):
        _, stream = await chat(address, 8)
        over_http.append(stream.first_s - stream.began_s)
        began = time.perf_counter()
        await engine.open(session, range(16, 32), Sampling(max_tokens=8))
        async for _ in engine.generate(session):
            own.append(time.perf_counter() - began)
            break
        await engine.cancel(session)
    return over_http, own


async def engine_alone(streams: int, tokens: int) -> float:
    """Tokens/s of the paced engine without anything around it."""
    engine = NullEngine(PACE, context=CONTEXT)

    async def one(session: int) -> None:
        await engine.open(session, range(16, 32), Sampling(max_tokens=tokens))
        async for _ in engine.generate(session):
            pass

    began = time.perf_counter()
    await asyncio.gather(*map(one, range(streams)))
    return streams * tokens / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5, help="times that each load is measured")
    parser.add_argument("--tokens", type=int, default=400, help="of each answer")
    options = parser.parse_args()
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
    report.figures(
        "gateway",
        {
            "tokens_per_s": round(median(run.tokens_per_s for run in loads)),
            "ttft_added_ms": round(1e3 * (median(over_http) - median(own)), 2),
            "paced_share": round(median(run.tokens_per_s for run in paced) / median(alone), 3),
        },
    )


def _columns(runs: list[Load]) -> tuple[list[float], list[float], list[float]]:
    return (
        [run.tokens_per_s for run in runs],
        [run.events_per_s for run in runs],
        [1e3 * median(run.ttft_s) for run in runs],
    )


if __name__ == "__main__":
    main()
