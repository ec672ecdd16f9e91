"""The whole application on vLLM against `vllm serve`: load, speculation, and a burst of readers.

    tandem benchmark versus_vllm [--rounds 3] [--grow 4] [--model FOLDER]

Either serves the embedded target, grown so that a step takes longer than what lies around it, with as many places, one
torch thread and its own best settings; both are up on one machine and take turns. Clients stream chats over HTTP. Load:
requests/s and time to first token at a concurrency of 1, 8 and 32, of an application that serves mode cloud alone, and
of one whose verifier also takes drafts. Speculation: tokens/s of one stream with drafts of the cloud's own drafter
(fused), and of a device at 10 ms, against plain decoding there. Burst: four requests for each place at once, whose
readers take in 5 to 15 tokens/s; the application knows their rates and schedules by them.

With --model, a Hugging Face folder, another model is served, in mode cloud alone.
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
CONTEXT = 1024  # tokens: the embedded target's, and as many of another model
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
    command += ["--max-model-len", str(CONTEXT)]
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


def settings(folder: Path, places: int, blocks: int, drafts: bool = True, **engine: Any) -> dict[str, Any]:
    """Return the application's settings. drafts: whether there are a drafter and a device."""
    vllm = {
        "kind": "vllm",
        "model": str(folder),
        "max_sessions": places,
        "kv_blocks": blocks,
        "block_size": 32,
    }
    verifier = {"engine": vllm | {"options": {"max_model_len": CONTEXT}} | engine}
    if not drafts:
        return {"verifier": verifier, "drafter": {"replicas": 0}}
    hosts = [{"name": "edge", "devices": [{"name": "laptop", "link": {"rtt_ms": 10}}]}]
    return {"verifier": verifier, "hosts": hosts}


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("versus_vllm", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="alternations (default 3)")
    parser.add_argument("--grow", type=int, default=4, help="times the target's layers (default 4)")
    parser.add_argument("--model", type=Path, help="another model's folder, in place of the target")
    options = parser.parse_args(arguments)
    if options.model is not None:
        report.figures("versus_vllm", _loads(options.model, options.rounds))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = family.path("target")
        if options.grow > 1:
            from tandem.engine.family.grow import grow

            grow(folder, options.grow, Path(made))
            folder = Path(made)
        figures = _loads(folder, options.rounds)
        figures |= _speculation(folder, options.rounds) | _bursts(folder, options.rounds)
    report.figures("versus_vllm", figures)


@contextmanager
def _both(folder: Path, places: int, blocks: int, **settled: Any) -> Iterator[tuple[Server, Server]]:
    with ExitStack() as stack:
        host, port = stack.enter_context(application(settings(folder, places, blocks, **settled)))
        theirs = stack.enter_context(vllm_serve(folder, places, blocks))
        ours = Server(f"http://{host}:{port}", "tandem").asked(mode="cloud")
        for server in (ours, theirs):
            asyncio.run(load(server, 8, 16))  # warm
        yield ours, theirs


def _loads(folder: Path, rounds: int) -> dict[str, float]:
    """Compare an application that serves mode cloud alone."""
    with _both(folder, 32, 512, drafts=False) as servers:
        return _load("mode cloud alone", "", servers, rounds)


def _load(what: str, prefix: str, servers: tuple[Server, Server], rounds: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    rows: list[list[str]] = []
    for concurrency in CONCURRENCY:
        requests, ratios, added_s = 6 * concurrency + 6, list[float](), list[float]()
        for number in report.progress(range(rounds), f"{what}, concurrency {concurrency}"):
            turns = servers if number % 2 == 0 else servers[::-1]  # what else the machine does falls on both
            took = {server.url: asyncio.run(load(server, concurrency, requests)) for server in turns}
            (own_s, own), (other_s, other) = (took[server.url] for server in servers)
            ratios.append(other_s / own_s)
            added_s.append(median(own) - median(other))
        figures[f"{prefix}requests_ratio_b{concurrency}"] = round(median(ratios), 3)
        if concurrency == 1:
            figures[f"{prefix}ttft_added_ms"] = round(median(added_s) * 1e3, 2)
        rows.append([f"concurrency {concurrency}", report.spread(ratios), report.milliseconds(added_s)])
    report.table(f"The application over vllm serve, {what}", ["", "requests/s, ratio", "TTFT added"], rows)
    return figures


def _speculation(folder: Path, rounds: int) -> dict[str, float]:
    """Compare an application whose verifier takes drafts, without and with them."""
    with _both(folder, 32, 512) as (ours, theirs):
        figures = _load("a verifier that takes drafts", "speculating_", (ours, theirs), rounds)
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
    buffered = {"scheduling": {"name": "buffer_aware"}}
    with _both(folder, BURST_PLACES, 512, drafts=False, **buffered) as (ours, theirs):
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
