"""The whole application on llama.cpp against llama.cpp's own server: streams at once, and speculation by kind of text.

    python -m benchmarks llamacpp --models DIR [--rounds 3] [--prompts 6] [--tokens 96]

Both serve the same GGUF file with as many threads; they take turns. llama.cpp's server is the one of the package
xllamacpp, which has to be installed for it, with each of its own kinds of speculation: none, a draft model, lookup.
Streams: tokens/s of 1, 4 and 8 chats at once, and the time to first token of one. Speculation (`mode: speculative` with
the smaller model as the cloud's drafter, windows by expected gain, prompt lookup): tokens/s of one chat on HumanEval
beside the best of the three servers, on edits of HumanEval's solutions and on SpecBench beside the plain one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from tandem.app.cli.server.local_ray import free_port
from tandem.benchmarks import report
from tandem.benchmarks.application import application, healthy
from tandem.benchmarks.chats import Server, ask
from tandem.benchmarks.paths import DATA, MODELS

STREAMS = (1, 4, 8)
CONTEXT = 8192  # tokens of all chats together
READY_WITHIN_S = 120.0
CHOSEN_BY = 20
"""HumanEval's first tasks, by which defaults were chosen: others judge."""
SERVER = """
import sys, time, xllamacpp as x
model, drafter, kind, port, threads, places, context = sys.argv[1:]
p = x.CommonParams()
p.model.path, p.port, p.n_parallel, p.n_ctx = model, int(port), int(places), int(context)
p.kv_unified = True
for cpu in (p.cpuparams, p.cpuparams_batch, p.speculative.draft.cpuparams, p.speculative.draft.cpuparams_batch):
    cpu.n_threads = int(threads)
Type = x.common_speculative_type
if kind == "draft":
    p.speculative.types = [Type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    p.speculative.draft.mparams.path = drafter
elif kind == "lookup":
    p.speculative.types = [Type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
server = x.Server(p)
while True:
    time.sleep(3600)
"""
KINDS = ("plain", "draft", "lookup")
"""Kinds of speculation of llama.cpp's server."""


@contextmanager
def llama_server(model: Path, drafter: Path, kind: str, threads: int) -> Iterator[Server]:
    """llama.cpp's server until the context is left. Raises RuntimeError if it does not come up."""
    port = free_port()
    words = [str(model), str(drafter), kind, str(port), str(threads), str(max(STREAMS)), str(CONTEXT)]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + READY_WITHIN_S
        while not healthy(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("llama.cpp's server did not come up: pip install xllamacpp")
            time.sleep(0.5)
        yield Server(url)
    finally:
        process.kill()
        process.wait(60)


def settings(model: Path, drafter: Path, threads: int) -> dict[str, Any]:
    """The application's."""
    engine = {"kind": "llamacpp", "threads": threads, "max_sessions": max(STREAMS)}
    kv = {"kv_blocks": CONTEXT // 16}
    return {
        "model": "model",
        "verifier": {"engine": engine | kv | {"model": str(model)}},
        "drafter": {"replicas": 1, "engine": engine | kv | {"model": str(drafter), "lookup": 0}},
        "window": {"name": "gain"},
    }


def questions(count: int) -> dict[str, list[str]]:
    """Return `count` questions of each kind of text."""
    with (DATA / "prompts" / "HumanEval.jsonl").open() as file:
        tasks = [json.loads(line) for line in file][CHOSEN_BY:][:count]
    with (DATA / "prompts" / "spec_bench.jsonl").open() as file:
        bench = [json.loads(line)["turns"][0] for line in file]
    return {
        "code": [f"Complete this function. Reply with the code only.\n\n{task['prompt']}" for task in tasks],
        "edit": [
            f"Rename the function {task['entry_point']} to solve, and change nothing else. Reply with all of the "
            f"code.\n\n```python\n{task['prompt']}{task['canonical_solution']}```"
            for task in tasks
        ],
        "chat": bench[:: len(bench) // count][:count],
    }


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("llamacpp", __doc__)
    parser.add_argument("--models", type=Path, default=MODELS, help="folder of the models")
    parser.add_argument("--target", default="qwen2.5-coder-1.5b.gguf")
    parser.add_argument("--drafter", default="qwen2.5-coder-0.5b.gguf")
    parser.add_argument("--rounds", type=int, default=3, help="alternations (default 3)")
    parser.add_argument("--prompts", type=int, default=6, help="of each kind of text (default 6)")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer, at most (default 96)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    model, drafter = options.models / options.target, options.models / options.drafter
    with ExitStack() as stack:
        host, port = stack.enter_context(application(settings(model, drafter, options.threads)))
        ours = Server(f"http://{host}:{port}")
        theirs = {
            kind: stack.enter_context(llama_server(model, drafter, kind, options.threads)) for kind in KINDS
        }
        asked = questions(options.prompts)
        for server in (ours, *theirs.values()):
            ask(server, asked["chat"][:2], 16)
        figures = _streams(ours, theirs["plain"], asked["chat"], options.rounds, options.tokens)
        figures |= _speculation(ours, theirs, asked, options.rounds, options.tokens)
    report.figures("llamacpp", figures)


def _streams(
    ours: Server, theirs: Server, asked: Sequence[str], rounds: int, tokens: int
) -> dict[str, float]:
    cloud = ours._replace(extra={"tandem": {"mode": "cloud"}})
    figures: dict[str, float] = {}
    rows = []
    for streams in STREAMS:
        ratios, added_s = list[float](), list[float]()
        for number in report.progress(range(rounds), f"{streams} streams"):
            several = [asked[i % len(asked)] for i in range(2 * max(2, streams))]
            wanted = [f"{question} ({number}.{i})" for i, question in enumerate(several)]
            (own, own_chats), (other, other_chats) = (
                ask(server, wanted, tokens, streams) for server in (cloud, theirs)
            )
            ratios.append(own / other)
            added_s.append(median(c.first_s for c in own_chats) - median(c.first_s for c in other_chats))
        figures[f"plain_ratio_{streams}"] = round(median(ratios), 3)
        if streams == 1:
            figures["ttft_added_ms"] = round(median(added_s) * 1e3, 2)
        rows.append([str(streams), report.spread(ratios), report.milliseconds(added_s)])
    report.table(
        "The application over llama.cpp's server", ["streams", "tokens/s, ratio", "TTFT added"], rows
    )
    return figures


def _speculation(
    ours: Server, theirs: Mapping[str, Server], asked: Mapping[str, list[str]], rounds: int, tokens: int
) -> dict[str, float]:
    speculative = ours._replace(extra={"tandem": {"mode": "speculative"}})
    servers = {"ours": speculative, **theirs}
    rates: dict[tuple[str, str], list[float]] = {}
    for text, wanted in asked.items():
        for number in report.progress(range(rounds), f"speculation on {text}"):
            for name, server in servers.items():
                rate, _ = ask(server, [f"{question}\n({number})" for question in wanted], tokens)
                rates.setdefault((text, name), []).append(rate)
    rows = [
        [text, name, report.spread(found), f"{median(found) / median(rates[text, 'plain']):.2f}"]
        for (text, name), found in rates.items()
    ]
    report.table("One chat", ["text", "server", "tokens/s", "over plain"], rows)

    def over(text: str, names: Sequence[str]) -> float:
        """Return the ratio over the best of these servers, each by its median."""
        return round(median(rates[text, "ours"]) / max(median(rates[text, name]) for name in names), 3)

    return {
        "speculative_ratio_code": over("code", KINDS),
        "speculative_ratio_edit": over("edit", ["plain"]),
        "speculative_ratio_chat": over("chat", ["plain"]),
    }
