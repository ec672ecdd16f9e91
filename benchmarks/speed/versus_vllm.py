"""The whole application on vLLM against `vllm serve`: load, speculation, and a burst of readers.

    python -m benchmarks versus_vllm [--rounds 3] [--grow 4]

Either serves the embedded target, grown so that a step takes longer than what lies around it, with as many places, one
torch thread and its own best settings; both are up on one machine and take turns. Clients stream chats over HTTP. Load:
requests/s and time to first token at a concurrency of 1, 8 and 32. Speculation: tokens/s of one stream with drafts of
the cloud's own drafter (fused), and of a device at 10 ms, against plain decoding there. Burst: four requests for each
place at once, whose readers take in 5 to 15 tokens/s; the application knows their rates and schedules by them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx
import numpy as np

from tandem.app.cli.server.local_ray import free_port
from tandem.benchmarks import report
from tandem.benchmarks.application import application, healthy
from tandem.engine import family
from tandem.engine.vllm import ENVIRONMENT
from tandem.engine.vllm.config import UNIPROC
from tandem.policies.reader.quality import Quality, ReaderStream, assess

CONCURRENCY = (1, 8, 32)
TOKENS = 64  # of an answer
READY_WITHIN_S = 180.0
BURST_PLACES, BURST_TOKENS = 8, 128
RATES = (5.0, 15.0)  # tokens/s, of a burst's readers
TOWNS = ("Marworth", "Winash", "Halden", "Corvale", "Thornwick", "Salmark")


class Answer(NamedTuple):
    """began_s: when it was asked. parts: of the stream, and when they came; looked into when the clock has stopped."""

    began_s: float
    parts: list[tuple[float, bytes]]

    def token_times_s(self) -> list[float]:
        """Return the arrival time of each of its tokens."""
        times_s: list[float] = []
        rest = b""
        for now_s, part in self.parts:
            *lines, rest = (rest + part).split(b"\n\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    usage = json.loads(line[6:]).get("usage") or {}
                    times_s += [now_s] * (usage.get("completion_tokens", 0) - len(times_s))
        return times_s


class Server(NamedTuple):
    """A chat server.

    url: of the API.
    model: name of the model.
    extra: fields of each request.
    """

    url: str
    model: str
    extra: Mapping[str, Any] = MappingProxyType({})

    def asked(self, **tandem: Any) -> Server:
        """Return the server with these request options."""
        return self._replace(extra={"tandem": tandem})


async def chat(client: httpx.AsyncClient, server: Server, number: int, tokens: int) -> Answer:
    """Read one answer of exactly so many tokens."""
    town = TOWNS[number % len(TOWNS)]
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": f"Question {number}. Tell me about the town of {town}."}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        **server.extra,
    }
    began_s, parts = time.perf_counter(), list[tuple[float, bytes]]()
    async with client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as reply:
        if reply.status_code != 200:
            raise RuntimeError(f"{server.url}: {(await reply.aread()).decode()}")
        async for part in reply.aiter_raw():
            parts.append((time.perf_counter(), part))
    return Answer(began_s, parts)


async def load(server: Server, concurrency: int, requests: int) -> tuple[float, list[float]]:
    """(seconds it all took, times to first token) of so many streams that ask again and again."""
    left = iter(range(requests))
    answers: list[Answer] = []

    async def one(client: httpx.AsyncClient) -> None:
        for number in left:
            answers.append(await chat(client, server, number, TOKENS))

    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None)) as client:
        began_s = time.perf_counter()
        await asyncio.gather(*(one(client) for _ in range(concurrency)))
        took_s = time.perf_counter() - began_s
    ttfts_s = []
    for answer in answers:
        times_s = answer.token_times_s()
        if len(times_s) != TOKENS:
            raise RuntimeError(f"{server.url}: {len(times_s)} tokens instead of {TOKENS}")
        ttfts_s.append(times_s[0] - answer.began_s)
    return took_s, ttfts_s


async def burst(server: Server, rates: Sequence[float]) -> Quality:
    """All at once, a reader each."""
    async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=None)) as client:

        async def one(number: int, rate: float) -> ReaderStream:
            asker = server.asked(mode="cloud", reader_rate=rate) if server.extra else server
            answer = await chat(client, asker, number, BURST_TOKENS)
            return ReaderStream(answer.began_s, answer.token_times_s(), rate)

        return assess(await asyncio.gather(*(one(i, rate) for i, rate in enumerate(rates))))


@contextmanager
def vllm_serve(folder: Path, places: int, blocks: int) -> Iterator[Server]:
    """`vllm serve` until the context is left. Raises RuntimeError if it does not come up."""
    port = free_port()
    # What `vllm serve` runs; that itself asks for a package's version that the CPU build has not.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--served-model-name",
        "target",
        "--dtype",
        "float32",
    ]
    command += [
        "--disable-uvicorn-access-log",
        "--enforce-eager",
        "--max-num-seqs",
        str(places),
        "--block-size",
        "32",
    ]
    command += ["--num-gpu-blocks-override", str(blocks), "--distributed-executor-backend", UNIPROC]
    process = subprocess.Popen(
        command, env=os.environ | ENVIRONMENT | {"OMP_NUM_THREADS": "1"}, stdout=sys.stderr
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + READY_WITHIN_S
        while not healthy(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("vllm serve did not come up")
            time.sleep(0.5)
        yield Server(url, "target")
    finally:
        process.terminate()
        process.wait(60)


def settings(folder: Path, places: int, blocks: int, **engine: Any) -> dict[str, Any]:
    """The application's."""
    vllm = {"kind": "vllm", "model": str(folder), "max_sessions": places, "kv_blocks": blocks}
    return {
        "verifier": {"engine": vllm | {"block_size": 32, "window": 8} | engine},
        "hosts": [{"name": "edge", "devices": [{"name": "laptop", "link": {"rtt_ms": 10}}]}],
    }


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("versus_vllm", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="alternations (default 3)")
    parser.add_argument("--grow", type=int, default=4, help="times the target's layers (default 4)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        folder = family.path("target")
        if options.grow > 1:
            from tandem.engine.family.grow import grow

            grow(folder, options.grow, Path(made))
            folder = Path(made)
        figures = _steady(folder, options.rounds) | _bursts(folder, options.rounds)
    report.figures("versus_vllm", figures)


@contextmanager
def _both(folder: Path, places: int, blocks: int, **engine: Any) -> Iterator[tuple[Server, Server]]:
    with ExitStack() as stack:
        host, port = stack.enter_context(application(settings(folder, places, blocks, **engine)))
        theirs = stack.enter_context(vllm_serve(folder, places, blocks))
        yield Server(f"http://{host}:{port}", "tandem").asked(mode="cloud"), theirs


def _steady(folder: Path, rounds: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    rows: list[list[str]] = []
    with _both(folder, 32, 512) as (ours, theirs):
        for server in (ours, theirs):
            asyncio.run(load(server, 8, 16))  # warm
        for concurrency in CONCURRENCY:
            requests, ratios, added_s = 6 * concurrency + 6, list[float](), list[float]()
            for _ in report.progress(range(rounds), f"concurrency {concurrency}"):
                (own_s, own), (other_s, other) = (
                    asyncio.run(load(server, concurrency, requests)) for server in (ours, theirs)
                )
                ratios.append(other_s / own_s)
                added_s.append(median(own) - median(other))
            figures[f"requests_ratio_b{concurrency}"] = round(median(ratios), 3)
            if concurrency == 1:
                figures["ttft_added_ms"] = round(median(added_s) * 1e3, 2)
            rows.append([f"concurrency {concurrency}", report.spread(ratios), report.milliseconds(added_s)])
        report.table("The application over vllm serve", ["", "requests/s, ratio", "TTFT added"], rows)
        wishes = {
            "fused": ours.asked(mode="speculative"),
            "device at 10 ms": ours.asked(mode="speculative", device="laptop"),
        }
        faster: dict[str, list[float]] = {name: [] for name in wishes}
        for _ in report.progress(range(rounds), "speculation"):
            plain_s, _ = asyncio.run(load(theirs, 1, 8))
            for name, server in wishes.items():
                faster[name].append(plain_s / asyncio.run(load(server, 1, 8))[0])
        report.table(
            "Speculation, one stream, over vllm serve",
            ["", "tokens/s, ratio"],
            [[name, report.spread(ratios)] for name, ratios in faster.items()],
        )
        figures["speculative_x"] = round(min(median(ratios) for ratios in faster.values()), 3)
    return figures


def _bursts(folder: Path, rounds: int) -> dict[str, float]:
    p99, effective = list[float](), list[float]()
    rows: list[list[str]] = []
    with _both(folder, BURST_PLACES, 512, scheduling={"name": "buffer_aware"}) as (ours, theirs):
        for server in (ours, theirs):
            asyncio.run(load(server, 8, 16))  # warm
        for number in report.progress(range(rounds), "bursts"):
            rates = np.random.default_rng(number).uniform(*RATES, 4 * BURST_PLACES).tolist()
            own, other = (asyncio.run(burst(server, rates)) for server in (ours, theirs))
            p99.append(own.ttft_p99_s / other.ttft_p99_s)
            effective.append(own.effective_throughput / other.effective_throughput)
            rows += [
                [f"{number}, {name}", f"{q.ttft_p99_s:.2f} s", f"{q.effective_throughput:.0f}/s"]
                for name, q in (("application", own), ("vllm serve", other))
            ]
    report.table("Bursts", ["", "TTFT p99", "effective tokens"], rows)
    return {
        "burst_p99_ratio": round(median(p99), 3),
        "burst_effective_x": round(median(effective), 3),
    }
